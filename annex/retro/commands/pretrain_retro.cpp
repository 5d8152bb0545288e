#include "annex/retro/commands/pretrain_retro.h"

#include <memory>

#include "annex/retro/model/retro_task.h"
#include "megatron/cli/pretrain.h"

namespace megatron::cli {

int pretrain_retro(std::span<const std::string> words, const comm::Group& world) {
  return pretrain("pretrain-retro", ModelKind::kGpt, words, world, [](const PreparedRun& begun) {
    return std::make_unique<RetroTask>(begun.args, begun.tokenizer);
  });
}

}  // namespace megatron::cli

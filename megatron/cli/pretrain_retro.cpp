#include "megatron/cli/pretrain_retro.h"

#include <memory>

#include "megatron/cli/pretrain.h"
#include "megatron/models/retro/retro_task.h"

namespace megatron::cli {

int pretrain_retro(std::span<const std::string> words, const comm::Group& world) {
  return pretrain("pretrain-retro", ModelKind::kGpt, words, world, [](const Pretraining& begun) {
    return std::make_unique<RetroTask>(begun.args, begun.tokenizer);
  });
}

}  // namespace megatron::cli

#include "megatron/cli/pretrain_gpt.h"

#include <memory>

#include "megatron/cli/pretrain.h"
#include "megatron/models/gpt/gpt_task.h"

namespace megatron::cli {

int pretrain_gpt(std::span<const std::string> words, const comm::Group& world) {
  return pretrain("pretrain-gpt", ModelKind::kGpt, words, world, [](const Pretraining& begun) {
    return std::make_unique<GptTask>(begun.args, begun.tokenizer);
  });
}

}  // namespace megatron::cli

#include "megatron/cli/pretrain_t5.h"

#include <memory>

#include "megatron/cli/pretrain.h"
#include "megatron/models/t5/t5_task.h"

namespace megatron::cli {

int pretrain_t5(std::span<const std::string> words, const comm::Group& world) {
  return pretrain("pretrain-t5", ModelKind::kT5, words, world, [](const PreparedRun& begun) {
    return std::make_unique<T5Task>(begun.args, begun.tokenizer);
  });
}

}  // namespace megatron::cli

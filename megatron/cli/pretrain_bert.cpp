#include "megatron/cli/pretrain_bert.h"

#include <memory>

#include "megatron/cli/pretrain.h"
#include "megatron/models/bert/bert_task.h"

namespace megatron::cli {

int pretrain_bert(std::span<const std::string> words, const comm::Group& world) {
  return pretrain("pretrain-bert", ModelKind::kBert, words, world, [](const PreparedRun& begun) {
    return std::make_unique<BertTask>(begun.args, begun.tokenizer);
  });
}

}  // namespace megatron::cli

#include "megatron/models/make_task.h"

#include <utility>

#include "megatron/models/bert/bert_task.h"
#include "megatron/models/gpt/gpt_task.h"
#include "megatron/models/t5/t5_task.h"

namespace megatron {

std::unique_ptr<ModelTask> make_pretraining_task(const RunConfig& config,
                                                 std::shared_ptr<const Tokenizer> tokenizer) {
  const TransformerConfig& model = config.transformer;
  if (model.is_encoder_decoder()) return std::make_unique<T5Task>(config, std::move(tokenizer));
  if (model.has_encoder()) return std::make_unique<BertTask>(config, std::move(tokenizer));
  return std::make_unique<GptTask>(config, std::move(tokenizer));
}

}  // namespace megatron

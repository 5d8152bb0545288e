#include "megatron/models/model_chunks.h"

#include "megatron/core/error.h"
#include "megatron/models/bert/bert_model.h"
#include "megatron/models/gpt/gpt_model.h"
#include "megatron/models/retro/retro_model.h"
#include "megatron/models/t5/t5_model.h"

namespace megatron {

std::vector<std::unique_ptr<const Model>> make_model_chunks(const TransformerConfig& config,
                                                            const ParallelConfig& layout,
                                                            const ParallelContext& parallel,
                                                            Stream stream, const BertHeads& heads) {
  const int stage = parallel.pipeline.rank();
  std::vector<std::unique_ptr<const Model>> made;
  if (config.is_encoder_decoder()) {
    made.push_back(std::make_unique<const T5Model>(config, t5_chunk(layout, config, stage),
                                                   parallel.tensor, stream));
    return made;
  }
  for (const ModelChunk& chunk : model_chunks(layout, config.num_layers, stage)) {
    made.push_back(make_model_chunk(config, chunk, parallel, stream, heads));
  }
  return made;
}

std::unique_ptr<const Model> make_model_chunk(const TransformerConfig& config,
                                              const ModelChunk& chunk,
                                              const ParallelContext& parallel, Stream stream,
                                              const BertHeads& heads) {
  if (config.is_encoder_decoder()) throw Unsupported("the chunks of a T5 are no ModelChunks");
  if (config.has_encoder()) {
    return std::make_unique<const BertModel>(config, chunk, parallel.tensor, stream, heads);
  }
  if (config.retro.add_retriever) {
    return std::make_unique<const RetroModel>(config, chunk, parallel.tensor, stream);
  }
  return std::make_unique<const GptModel>(config, chunk, parallel.tensor, stream, parallel.context);
}

std::vector<std::string> layout_problems(const TransformerConfig& config,
                                         const ParallelConfig& layout) {
  return config.is_encoder_decoder()
             ? t5_pipeline_problems(layout, config)
             : pipeline_problems(layout, config.num_layers, config.mtp_num_layers);
}

}  // namespace megatron

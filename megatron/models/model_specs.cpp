#include "megatron/models/model_specs.h"

#include "megatron/core/error.h"
#include "megatron/models/bert/bert_model.h"
#include "megatron/models/gpt/gpt_model.h"
#include "megatron/models/t5/t5_model.h"

namespace megatron {

std::vector<ParameterSpec> model_specs(const TransformerConfig& config, const ModelChunk& chunk) {
  switch (config.kind) {
    case ModelKind::kGpt:
      return gpt_specs(config, chunk);
    case ModelKind::kBert:
      return bert_specs(config, chunk);
    case ModelKind::kT5:
      throw Unsupported("the chunks of a T5 are no ModelChunks");
  }
  throw InternalError("model_specs: unknown kind of model");
}

std::vector<ParameterSpec> model_specs(const TransformerConfig& config) {
  if (config.kind == ModelKind::kT5) return t5_specs(config);
  return model_specs(config, whole_model(config.num_layers));
}

std::vector<TensorSpec> model_tensors(const TransformerConfig& config) {
  std::vector<TensorSpec> tensors;
  for (const ParameterSpec& spec : model_specs(config)) {
    tensors.push_back({spec.name, spec.dtype, spec.shape});
  }
  return tensors;
}

}  // namespace megatron

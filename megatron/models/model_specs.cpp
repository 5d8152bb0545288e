#include "megatron/models/model_specs.h"

#include "megatron/models/model_chunks.h"

namespace megatron {

std::vector<Parameter> model_specs(const TransformerConfig& config, const ModelChunk& chunk) {
  const DescribeOnly describe_only;
  return named_tensors(*make_model_chunk(config, chunk, {}, Stream{}));
}

std::vector<Parameter> model_specs(const TransformerConfig& config) {
  const DescribeOnly describe_only;
  return named_tensors(*make_model_chunks(config, {}, {}, Stream{}).front());
}

std::vector<TensorSpec> model_tensors(const TransformerConfig& config) {
  std::vector<TensorSpec> tensors;
  for (const Parameter& parameter : model_specs(config)) tensors.push_back(parameter.whole());
  return tensors;
}

}  // namespace megatron

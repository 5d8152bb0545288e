#include "megatron/models/model_specs.h"

#include "megatron/models/model_chunks.h"

namespace megatron {

std::vector<ParameterSpec> model_specs(const TransformerConfig& config, const ModelChunk& chunk) {
  const DescribeOnly describe_only;
  return specs(*make_model_chunk(config, chunk, {}, Stream{}));
}

std::vector<ParameterSpec> model_specs(const TransformerConfig& config) {
  const DescribeOnly describe_only;
  return specs(*make_model_chunks(config, {}, {}, Stream{}).front());
}

std::vector<TensorSpec> model_tensors(const TransformerConfig& config) {
  const std::vector<ParameterSpec> specs = model_specs(config);
  return {specs.begin(), specs.end()};
}

}  // namespace megatron

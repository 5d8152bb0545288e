#include "megatron/models/gpt/gpt_parameters.h"

#include "megatron/models/gpt/gpt_model.h"

namespace megatron {

std::vector<TensorSpec> gpt_parameters(const TransformerConfig& config) {
  std::vector<TensorSpec> tensors;
  for (const ParameterSpec& spec : gpt_specs(config)) {
    tensors.push_back({spec.name, spec.dtype, spec.shape});
  }
  return tensors;
}

}  // namespace megatron

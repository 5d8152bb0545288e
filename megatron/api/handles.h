#pragma once

#include <span>
#include <vector>

#include "megatron/inference/model_step.h"
#include "megatron/model.h"
#include "megatron/nn/module.h"
#include "megatron/tensor.h"
#include "megatron/tensor/tensor.h"

namespace megatron::api {

// The same elements as a tensor of the public interface. Waits until they are computed.
Tensor handle_of(const megatron::Tensor& tensor);
// The parameters of the modules, without buffers.
std::vector<NamedTensor> parameters_of(const std::vector<const Module*>& modules);

// Model::generate() with any model.
std::vector<std::vector<int32_t>> continued(const InferenceModel& model,
                                            std::span<const std::vector<int32_t>> prompts,
                                            const GenerateOptions& options, int64_t vocab_size);

}  // namespace megatron::api

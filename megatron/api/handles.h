#pragma once

#include <vector>

#include "megatron/nn/module.h"
#include "megatron/tensor.h"
#include "megatron/tensor/tensor.h"

namespace megatron::api {

// The same elements as a tensor of the public interface.
Tensor handle_of(const megatron::Tensor& tensor);
// The parameters of the modules, without buffers.
std::vector<NamedTensor> parameters_of(const std::vector<const Module*>& modules);

}  // namespace megatron::api

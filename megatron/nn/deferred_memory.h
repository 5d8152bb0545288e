#pragma once

#include <cstdint>
#include <string>

#include "megatron/nn/parameter.h"
#include "megatron/tensor/tensor.h"

namespace megatron {

// While it lives, parameters of modules that this thread builds are without memory
// (Tensor::drop_memory), so that a model may exist that does not fit. initialize() skips them; code
// that later allocates a parameter fills it with first_value(). Buffers have memory.
class DeferMemory {
 public:
  DeferMemory();
  ~DeferMemory();
  DeferMemory(const DeferMemory&) = delete;
  DeferMemory& operator=(const DeferMemory&) = delete;

 private:
  bool previous_;
};

// Fills `data`, this rank's part of the parameter `name` of a model, as initialize() would.
void first_value(const std::string& name, const ParameterInfo& info, Tensor data, uint64_t seed);

}  // namespace megatron

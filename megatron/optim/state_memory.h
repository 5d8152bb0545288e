#pragma once

#include <cstdint>
#include <string_view>

#include "megatron/kernels/optimizer.h"
#include "megatron/optim/config.h"
#include "megatron/tensor/tensor.h"

namespace megatron {

// A state of an update rule: one number for each element of the parameters.
struct StateSpec {
  std::string_view name;          // in Megatron's checkpoints
  DType dtype = DType::kFloat32;  // or bf16; fp16 and fp8 hold codes
  bool is_root = false;           // codes stand for square roots: the numbers are never negative

  kernels::MomentCode code(const OptimizerConfig& config) const;
};

// Codes in fp16: clipping bounds gradients, so 2^15 is beyond all moments (kernels/moment_code.h).
double fp16_scale(const OptimizerConfig& config);

// Owns the memory of a state; kernels::Moment is a view of it.
struct StateMemory {
  Tensor elements;
  Tensor exponents;  // of fp8

  StateMemory() = default;
  // Zeros.
  StateMemory(int64_t size, DType dtype, Stream stream);
  // Elements [begin, begin + size); begin is a multiple of kernels::kMomentBlock.
  StateMemory slice(int64_t begin, int64_t size) const;
  // True if the elements are codes of other values.
  bool is_code() const;
  kernels::Moment moment() const;
};

}  // namespace megatron

#pragma once

#include <vector>

#include "megatron/kernels/head_norm.h"
#include "tests/support/tensors.h"

namespace megatron {

struct HeadNormCase {
  const char* name;
  int64_t s, b, heads, groups, d;
  int64_t dim = 0;  // rotated channels
  kernels::RotaryPairs pairs = kernels::RotaryPairs::kHalves;
  bool has_bias = false, has_ids = false;
};

// Tensors of a case: qkv, q_weight, k_weight, q_bias, k_bias, table, position ids; those that it
// does not have are undefined.
std::vector<Tensor> head_norm_tensors(const HeadNormCase& c, DType dtype);
kernels::HeadNorms norms_of(const std::vector<Tensor>& tensors);
kernels::HeadRotation rotation_of(const std::vector<Tensor>& tensors, const HeadNormCase& c);
std::vector<HeadNormCase> head_norm_cases();

}  // namespace megatron

#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "megatron/kernels/attention.h"
#include "tests/support/tensors.h"

// Attention against its definition in fp64, with a row of scores at a time.
namespace megatron::attention_tests {

struct Problem {
  std::string name;
  int64_t sq = 0, sk = 0, b = 0, heads = 0, groups = 0, d = 0;
  kernels::AttentionSettings settings{};
  DType dtype = DType::kFloat32;
  double widening = 1;  // of the tolerance
};
// Queries, keys, values and what goes with them, each [s, b, heads * d].
struct Inputs {
  Tensor q, k, v, dout;
};
Inputs inputs_of(const Problem& p);

struct Outputs {
  Tensor out, lse, dq, dk, dv;
  Tensor dbias;   // with a relative bias
  Tensor dsinks;  // with sinks
};
Outputs run(const Problem& p, const Inputs& in);

// Both passes against the definition.
void check(const Problem& p);

}  // namespace megatron::attention_tests

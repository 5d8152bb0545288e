#pragma once

#include <functional>
#include <string>
#include <vector>

#include "megatron/autograd/variable.h"
#include "tests/support/tensors.h"

namespace megatron {

// An op as a function of its differentiable inputs; other inputs (ids, scalars) are captured.
using OpFunction = std::function<Variable(const std::vector<Variable>&)>;

// One op with example inputs. check() runs it as
//   1. gradients against central differences of sum(w * y), w fixed and random, summed in fp64;
//   2. the op against its reference (output and gradients) or its expected output;
//   3. fp16 and bf16 against fp32 on the same (rounded) inputs, output and gradients;
//   4. gradients added into an fp32 main gradient against gradients returned.
// Inputs are fp32 and small: check 1 costs four evaluations of the op per input element.
struct OpCase {
  std::string name;
  std::vector<Tensor> inputs;
  OpFunction op;
  // The same function in plain ops, or its values in fp64 loops; give one if useful.
  OpFunction reference = nullptr;
  std::function<Tensor(const std::vector<Tensor>&)> expected = nullptr;

  // Terms of the longest sum in an output or a gradient; its root widens tolerances.
  int64_t terms = 1;
  // Positions of inputs that stay fp32 when the others are 16-bit.
  std::vector<size_t> fp32_inputs = {};
  // The 16-bit types that the op supports.
  std::vector<DType> dtypes = {DType::kFloat16, DType::kBFloat16};
  // Step and tolerance of the differences; the tolerance is relative to the largest gradient.
  double step = 0x1p-5;
  double gradient_tolerance = 2e-4;
  // False for inputs that are too large or too rough for differences.
  bool check_differences = true;
};

void check(const OpCase& c);

}  // namespace megatron

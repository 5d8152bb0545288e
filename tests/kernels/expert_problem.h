#pragma once

#include <vector>

#include "megatron/kernels/expert_forward.h"
#include "tests/support/tensors.h"

namespace megatron {

struct ExpertCase {
  const char* name;
  int64_t tokens, k, experts;  // of the layer
  int64_t hidden, inner;
  Activation activation = Activation::kSwiglu;
  bool has_bias = false;
  bool weighs_input = false;
  int64_t first_expert = 0;  // the experts before it are on other ranks
};

// The layer of a case, its tokens and their outputs.
struct ExpertProblem {
  ExpertCase c;
  Tensor x, ids, weights, fc1, fc1_bias, fc2, fc2_bias;

  // On the CPU. Every fifth choice is none.
  ExpertProblem(const ExpertCase& expert_case, DType dtype);
  ExpertProblem on(Stream stream) const;

  kernels::ExpertLayers layers() const;
  // [T, h] fp32, by plain loops.   REQUIRES: on the CPU
  Tensor expected() const;
  // Fails the test if the output of a token is wrong.
  void expect_output(const Tensor& y) const;
};

std::vector<ExpertCase> expert_cases();

}  // namespace megatron

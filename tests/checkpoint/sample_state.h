#pragma once

#include <map>
#include <string>
#include <vector>

#include "megatron/checkpoint/state.h"
#include "tests/support/tensors.h"

namespace megatron {

// A small model in bf16 with Adam's state. `seed` changes every element.
inline CheckpointState sample_state(int64_t iteration, uint64_t seed) {
  CheckpointState state;
  state.iteration = iteration;
  state.consumed_train_samples = 8 * iteration;
  state.consumed_valid_samples = 3 * iteration;
  const std::map<std::string, Shape> shapes = {{"embedding.word_embeddings.weight", {32, 6}},
                                               {"decoder.layers.0.mlp.linear_fc1.weight", {10, 6}},
                                               {"decoder.layers.0.mlp.linear_fc1.bias", {10}},
                                               {"scale", {}},
                                               {"nothing", {0, 4}}};
  for (const auto& [name, shape] : shapes) {
    seed += 1;
    const Tensor main_param = random_normal(shape, {.seed = seed});
    state.model.push_back(whole_tensor(name, cast(main_param, DType::kBFloat16)));
    state.optimizer["main_param"].push_back(whole_tensor(name, main_param));
    state.optimizer["exp_avg"].push_back(
        whole_tensor(name, random_normal(shape, {.seed = seed + 100})));
  }
  state.scalars["opt_param_scheduler"] = {{"max_lr", 0.1}, {"num_steps", int64_t{160}}};
  state.scalars["rng"] = {{"seed", int64_t{1234}}};
  state.args = {{"num_layers", int64_t{1}}, {"hidden_size", int64_t{6}}};
  return state;
}

// The same tensors with other elements, as targets for loading.
inline CheckpointState blank_state() { return sample_state(0, 9000); }

inline void expect_same_tensors(const std::vector<CheckpointTensor>& got,
                                const std::vector<CheckpointTensor>& want) {
  ASSERT_EQ(got.size(), want.size());
  for (size_t i = 0; i < got.size(); ++i) {
    EXPECT_EQ(got[i].name, want[i].name);
    expect_identical(got[i].data, want[i].data, got[i].name);
  }
}

inline void expect_same(const CheckpointState& got, const CheckpointState& want) {
  EXPECT_EQ(got.iteration, want.iteration);
  EXPECT_EQ(got.consumed_train_samples, want.consumed_train_samples);
  EXPECT_EQ(got.consumed_valid_samples, want.consumed_valid_samples);
  EXPECT_EQ(got.scalars, want.scalars);
  EXPECT_EQ(got.args, want.args);
  expect_same_tensors(got.model, want.model);
  ASSERT_EQ(got.optimizer.size(), want.optimizer.size());
  for (const auto& [section, tensors] : want.optimizer) {
    expect_same_tensors(got.optimizer.at(section), tensors);
  }
}

}  // namespace megatron

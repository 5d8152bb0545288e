#include "megatron/kernels/optimizer_step.h"

#include <cmath>
#include <cstring>
#include <limits>

#include "megatron/kernels/optimizer.h"
#include "tests/kernels/cuda/twin.h"

namespace megatron {
namespace {

using OptimizerStepCudaTest = CudaTest;

constexpr double kInfinity = std::numeric_limits<double>::infinity();

Tensor tensor_of_state(const kernels::StepState& numbers) {
  Tensor state({kernels::kStepStateBytes}, DType::kUInt8, Stream{});
  std::memcpy(state.view().data, &numbers, sizeof numbers);
  return state;
}

TEST_F(OptimizerStepCudaTest, StepSums) {
  for (const double odd_one : {2.0, kInfinity}) {
    for (const float loss : {1.0f, std::nanf("")}) {
      const Tensor found = tensor_of(
          std::vector<double>{0.1, 2, odd_one, 20, 5, 50, 0.7, 1, 4, 8, 3, 30}, {2, 3, 2});
      expect_twins({zeros({kernels::kNumStepSums}, DType::kFloat64, Stream{}), found,
                    tensor_of(std::vector<float>{loss, 2.0f}, {2})},
                   [](std::vector<Tensor>& x, Stream stream) {
                     kernels::step_sums(x[0].view(), x[1].view(), x[2].view(), stream);
                     kernels::step_sums(x[0].view(), x[1].view(), {}, stream);
                   },
                   {.tolerance = Tolerance{}});
    }
  }
}

TEST_F(OptimizerStepCudaTest, DecideStepAndSeed) {
  const kernels::StepRule rule{
      .loss_scale = {.is_dynamic = true, .min_scale = 1, .window = 2, .hysteresis = 1},
      .skips_not_finite = true,
      .clip_grad = 0.7};
  kernels::StepState before;
  before.loss_scale = {.scale = 1024, .growth_tracker = 1, .hysteresis_tracker = 1};
  for (const double not_finite : {0.0, 1.0}) {
    for (const double squares : {3.0, 3e7, kInfinity}) {
      expect_twins(
          {tensor_of_state(before), tensor_of(std::vector<double>{squares, 12, not_finite}, {3}),
           zeros({}, DType::kFloat32, Stream{}), tensor_of(std::vector<float>{2.5f}, {1})},
          [&](std::vector<Tensor>& x, Stream stream) {
            kernels::weigh_gradients(x[0].view(), x[3].view(), 3, stream);
            kernels::decide_step(x[0].view(), x[1].view(), rule, stream);
            kernels::loss_seed(x[2].view(), x[0].view(), 3, stream);
          },
          {.tolerance = Tolerance{}});
    }
  }
}

TEST_F(OptimizerStepCudaTest, FindNotFinite) {
  constexpr int64_t kSize = 100'003;
  for (const DType dtype : {DType::kFloat32, DType::kFloat16, DType::kBFloat16}) {
    for (const int64_t is_skipped : {0, 1}) {
      Tensor values = random_normal({kSize}, {.seed = 1});
      for (const size_t i : {5, 5, 70'000, 100'002}) {
        values.span<float>()[i] = std::numeric_limits<float>::infinity();
      }
      expect_twins(
          {tensor_of_state({.is_skipped = is_skipped}), cast(values, dtype),
           tensor_of(std::vector<int64_t>{6, 60'000, 80'000, kSize}, {4}),
           tensor_of(std::vector<int32_t>{9, 1, 3, 4}, {4})},
          [](std::vector<Tensor>& x, Stream stream) {
            kernels::find_not_finite(x[0].view(), x[1].view(), {x[2].view(), x[3].view()}, stream);
          });
    }
  }
}

TEST_F(OptimizerStepCudaTest, ASkippedStepLeavesEverythingAsItIs) {
  const std::vector<kernels::AdamNumbers> adam = {{.lr = 1.0}};
  const std::vector<kernels::SgdNumbers> sgd = {{.lr = 1.0}};
  const Tensor before = random_normal({1000}, {.seed = 1});
  const Tensor state = tensor_of_state({.is_skipped = 1}).to(stream());
  const Tensor ends = tensor_of(std::vector<int64_t>{1000}, {1}).to(stream());
  const Tensor groups = tensor_of(std::vector<int32_t>{0}, {1}).to(stream());
  const Tensor g = random_normal({1000}, {.seed = 2}).to(stream());
  Tensor w = before.to(stream()), m = before.to(stream()), v = before.to(stream());
  Tensor model = cast(before, DType::kBFloat16).to(stream());
  kernels::adam(model.view(), w.view(), m.view(), v.view(), g.view(), {ends.view(), groups.view()},
                adam, state.view(), stream());
  kernels::sgd_momentum(model.view(), w.view(), m.view(), g.view(), {ends.view(), groups.view()},
                        sgd, state.view(), stream());
  for (const Tensor& x : {w, m, v}) expect_identical(x.to(Stream{}), before);
  expect_identical(model.to(Stream{}), cast(before, DType::kBFloat16));
}

}  // namespace
}  // namespace megatron

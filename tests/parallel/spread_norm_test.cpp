#include "megatron/parallel/tensor/spread_norm.h"

#include <gtest/gtest.h>

#include "megatron/comm/threads.h"
#include "tests/parallel/shards.h"
#include "tests/support/tensors.h"

namespace megatron {
namespace {

// The part of the last axis of x that a rank has.
Tensor own_part_of(const Tensor& x, const TensorParallel& tp) {
  const int64_t columns = x.size(-1) / tp.size();
  Tensor part(x.shape().with(-1, columns), x.dtype(), Stream{});
  for (int64_t i = 0; i < part.numel(); ++i) {
    const int64_t at = i / columns * x.size(-1) + tp.rank() * columns + i % columns;
    part.span<float>()[static_cast<size_t>(i)] = x.span<float>()[static_cast<size_t>(at)];
  }
  return part;
}

// Parameter: ranks.
class SpreadNormTest : public testing::TestWithParam<int> {};

TEST_P(SpreadNormTest, RanksComputeWhatOneComputes) {
  for (const bool one_plus_weight : {false, true}) {
    const NormOptions options = {.epsilon = 1e-3f, .one_plus_weight = one_plus_weight};
    const Tensor x = random_normal({5, 2, 12}, {.seed = 1});
    const Tensor weight = random_normal({12}, {.seed = 2});
    const Tensor dy = random_normal({5, 2, 12}, {.seed = 3});
    const Variable want_x = Variable::leaf(x);
    const Variable want_weight = Variable::leaf(weight);
    const Variable want = rms_norm(want_x, want_weight, options);
    backward(want, dy);
    comm::run_ranks(GetParam(), [&](const comm::Group& group) {
      const TensorParallel tp{.group = group};
      const Variable mine = Variable::leaf(own_part_of(x, tp));
      const Variable my_weight = Variable::leaf(own_part_of(weight, tp));
      const Variable y = spread_rms_norm(mine, my_weight, options, tp);
      backward(y, own_part_of(dy, tp));
      expect_close(y.data(), own_part_of(want.data(), tp), Tolerance{1e-6, 1e-6}, "y");
      expect_close(mine.grad(), own_part_of(want_x.grad(), tp), Tolerance{1e-5, 1e-6}, "dx");
      expect_close(my_weight.grad(), own_part_of(want_weight.grad(), tp), Tolerance{1e-5, 1e-6},
                   "dweight");
    });
  }
}

INSTANTIATE_TEST_SUITE_P(Ranks, SpreadNormTest, testing::Values(1, 2, 3, 4));

}  // namespace
}  // namespace megatron

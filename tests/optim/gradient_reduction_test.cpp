#include "megatron/optim/gradient_reduction.h"

#include <gtest/gtest.h>

#include "megatron/comm/threads.h"
#include "tests/parallel/layouts.h"
#include "tests/support/tensors.h"

namespace megatron {
namespace {

constexpr int kRanks = 2;
constexpr int kParameters = 5;

// Five parameters of 64 elements in buckets of two.
std::vector<OptimizedParameter> parameters() {
  std::vector<OptimizedParameter> all;
  for (int i = 0; i < kParameters; ++i) {
    OptimizedParameter& p = all.emplace_back();
    p.name = "weight" + std::to_string(i);
    p.variable = Variable::leaf(full({64}, 0.0f, DType::kFloat32, Stream{}));
  }
  return all;
}

// Parameter: overlap_param_gather.
class ParameterGatherTest : public testing::TestWithParam<bool> {};

TEST_P(ParameterGatherTest, EveryRankSeesWhatTheOthersUpdated) {
  comm::run_ranks(kRanks, [](const comm::Group& world) {
    FlatParameters flat(parameters(), {.layout = {.bucket_size = 100}, .divides_state = true},
                        data_parallel(world));
    FlatBuffer& buffer = flat.buffers()[0];
    ASSERT_EQ(buffer.layout.buckets.size(), 3u);
    GradientReduction reduction(flat, {},
                                {.overlap_grad_reduce = true, .overlap_param_gather = GetParam()});
    for (int iteration = 1; iteration <= 3; ++iteration) {
      reduction.begin(1);
      reduction.finish();
      for (const FlatSpan& share : buffer.shares) {  // the update
        for (int64_t i = share.begin; i < share.end; ++i) {
          buffer.params.span<float>()[static_cast<size_t>(i)] =
              static_cast<float>(1000 * iteration + i);
        }
      }
      reduction.gather_parameters();
      for (size_t p = 0; p < kParameters; ++p) {
        if (iteration == 2 && p == 3) continue;  // not looked at: finish() waits for it
        const Tensor& seen = flat.parameters()[p].variable.data();
        for (int64_t i = 0; i < 64; ++i) {
          const int64_t place = buffer.layout.places[p].begin + i;
          ASSERT_EQ(element(seen, i), static_cast<float>(1000 * iteration + place));
        }
      }
    }
  });
}

INSTANTIATE_TEST_SUITE_P(Overlapped, ParameterGatherTest, testing::Bool());

}  // namespace
}  // namespace megatron

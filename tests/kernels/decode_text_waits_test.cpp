#include "megatron/kernels/cuda/decode_text_waits.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <random>

namespace megatron::kernels::cuda::text {
namespace {

constexpr int kHalfStep = 125;  // of a wait

// The duration of a call with the optimum `best`: more with each number that is another, and up to
// `noise` cycles more by chance.
struct Kernel {
  int best[kSearched];
  int noise = 0;
  std::mt19937 random{3};

  uint32_t cycles(const WaitSearch& search) {
    int sum = 1000000;
    for (int i = 0; i < kSearched; ++i) {
      sum += (i == kMoreInFlight ? 9000 : 20) * std::abs(search.value(i) - best[i]);
    }
    return static_cast<uint32_t>(
        sum + (noise == 0 ? 0 : static_cast<int>(random() % static_cast<unsigned>(noise))));
  }
};

// The numbers that calls without a trial have after some calls.
WaitSearch after_calls(Kernel kernel, int calls, WaitSearch search = {}) {
  for (int i = 0; i < calls || search.is_trial != 0; ++i) search.learn(kernel.cycles(search));
  return search;
}
void expect_near(const WaitSearch& search, const Kernel& kernel, int cycles) {
  for (int i = 0; i < kSearched; ++i) {
    EXPECT_NEAR(search.value(i), kernel.best[i], i == kMoreInFlight ? 0 : cycles) << i;
  }
}

TEST(WaitSearchTest, FindsTheFastestNumbers) {
  const Kernel kernel{{500, 4100, 2000, 6000, 0, 4}};
  expect_near(after_calls(kernel, 600), kernel, kHalfStep);
}

TEST(WaitSearchTest, FindsThemAmongCallsOfUnequalTimes) {
  const Kernel kernel{{2000, 5000, 3500, 1500, 500, -1}, 6000};
  expect_near(after_calls(kernel, 1000), kernel, 4 * kHalfStep);
}

TEST(WaitSearchTest, FollowsWhenTheBestNumbersChange) {
  const Kernel first{{2500, 4000, 2500, 3000, 1500, 0}}, second{{2500, 5000, 2500, 3000, 1000, 2}};
  expect_near(after_calls(second, 600, after_calls(first, 400)), second, kHalfStep);
}

TEST(WaitSearchTest, RestsWhenNoChangeHelps) {
  WaitSearch search{};
  Kernel kernel{};
  for (int i = 0; i < kSearched; ++i) kernel.best[i] = search.value(i);
  for (int i = 0; i < 2 * kSearched * 2 * WaitSearch::kCalls; ++i) {
    search.learn(kernel.cycles(search));
  }
  for (int i = 0; i < WaitSearch::kRest; ++i) {
    ASSERT_EQ(kernel.cycles(search), 1000000u) << i;
    search.learn(kernel.cycles(search));
  }
  search.learn(kernel.cycles(search));
  EXPECT_NE(kernel.cycles(search), 1000000u);
}

TEST(WaitSearchTest, NoWaitIsNegative) {
  Kernel kernel{{0, 0, 0, 0, 0, 0}};
  WaitSearch search{};
  for (int i = 0; i < 1000; ++i) {
    for (int wait = 0; wait < kMoreInFlight; ++wait) ASSERT_GE(search.value(wait), 0);
    search.learn(kernel.cycles(search));
  }
}

}  // namespace
}  // namespace megatron::kernels::cuda::text

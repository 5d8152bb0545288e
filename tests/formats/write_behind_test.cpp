#include "megatron/formats/write_behind.h"

#include <gtest/gtest.h>

#include <atomic>
#include <numeric>
#include <stdexcept>
#include <vector>

namespace megatron {
namespace {

TEST(WriteBehindTest, DoesTasksInOrder) {
  std::vector<int> done;
  WriteBehind behind(10);
  for (int i = 0; i < 100; ++i) behind.push(3, [&done, i] { done.push_back(i); });
  behind.finish();
  std::vector<int> want(100);
  std::iota(want.begin(), want.end(), 0);
  EXPECT_EQ(done, want);
  behind.push(1, [&done] { done.push_back(100); });
  behind.finish();
  EXPECT_EQ(done.size(), 101u);
}

TEST(WriteBehindTest, HoldsNoMoreThanItMay) {
  std::atomic<int> held{0};
  std::atomic<int> most{0};
  WriteBehind behind(4);
  for (int i = 0; i < 50; ++i) {
    behind.push(2, [&] { --held; });
    most = std::max(most.load(), ++held);
  }
  behind.finish();
  EXPECT_LE(most, 2);
  // One that is larger than the bound goes alone.
  behind.push(1000, [] {});
  behind.finish();
}

TEST(WriteBehindTest, FailsOnceAndForAll) {
  WriteBehind behind(10);
  std::atomic<bool> is_done = false;
  behind.push(1, [] { throw std::runtime_error("full"); });
  EXPECT_THROW(behind.finish(), std::runtime_error);
  EXPECT_THROW(behind.push(1, [&] { is_done = true; }), std::runtime_error);
  EXPECT_THROW(behind.finish(), std::runtime_error);
  EXPECT_FALSE(is_done);
}

}  // namespace
}  // namespace megatron

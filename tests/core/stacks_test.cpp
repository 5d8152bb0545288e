#include "megatron/core/stacks.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <pthread.h>

#include <atomic>
#include <chrono>
#include <string>
#include <thread>
#include <vector>

namespace megatron {
namespace {

using testing::HasSubstr;

std::atomic<int> g_num_waiting{0};
std::atomic<bool> g_goes_on{false};

}  // namespace

// Not in the anonymous namespace, and never inlined: its name is in the symbol table.
[[gnu::noinline]] int wait_in_a_known_place(int depth) {
  if (depth > 0) return wait_in_a_known_place(depth - 1) + 1;
  ++g_num_waiting;
  while (!g_goes_on) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  return 0;
}

namespace {

TEST(StacksTest, NamesTheCallsOfEveryThread) {
  std::vector<std::thread> threads;
  threads.reserve(2);
  for (int i = 0; i < 2; ++i) {
    threads.emplace_back([i] {
      ::pthread_setname_np(::pthread_self(), i == 0 ? "rank 0" : "rank 1");
      EXPECT_EQ(wait_in_a_known_place(1), 1);
    });
  }
  while (g_num_waiting < 2) std::this_thread::yield();
  const std::string text = stacks_of_all_threads();
  g_goes_on = true;
  for (std::thread& thread : threads) thread.join();
  EXPECT_THAT(text, HasSubstr("  megatron::wait_in_a_known_place(int)\n"));
  EXPECT_THAT(text, HasSubstr("(rank 0)"));
  EXPECT_THAT(text, HasSubstr("StacksTest_NamesTheCallsOfEveryThread_Test::TestBody()"));
}

}  // namespace
}  // namespace megatron

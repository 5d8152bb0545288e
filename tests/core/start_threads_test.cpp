#include "megatron/core/start_threads.h"

#include <gtest/gtest.h>
#include <sys/resource.h>

#include <atomic>
#include <cstdlib>
#include <fstream>

namespace megatron {
namespace {

TEST(StartThreadsTest, AllRun) {
  std::atomic<int> calls = 0;
  for (std::thread& thread : start_threads(
           3, [&] { ++calls; }, "counting")) {
    thread.join();
  }
  EXPECT_EQ(calls, 3);
}

int64_t address_space_bytes() {
  int64_t pages = 0;
  std::ifstream("/proc/self/statm") >> pages;
  return pages * 4096;
}

// Room for the stacks of some threads, in a process of its own: what stands here only warns.
TEST(StartThreadsDeathTest, FewerIsAWarning) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  const auto start_with_little_room = [] {
    const auto room = static_cast<rlim_t>(address_space_bytes() + (int64_t{48} << 20));
    const rlimit limit = {room, room};
    ::setrlimit(RLIMIT_AS, &limit);
    std::atomic<bool> done = false;
    std::vector<std::thread> threads = start_threads(
        200, [&] { done.wait(false); }, "reading samples ahead");
    const bool are_fewer = threads.size() < 200;
    done = true;
    done.notify_all();
    for (std::thread& thread : threads) thread.join();
    std::_Exit(are_fewer ? 0 : 1);
  };
  EXPECT_EXIT(start_with_little_room(), testing::ExitedWithCode(0),
              "of 200 threads for reading samples ahead started: .*this only costs time");
}

}  // namespace
}  // namespace megatron

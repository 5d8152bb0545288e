#include "megatron/comm/working.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <thread>
#include <vector>

#include "megatron/comm/collectives.h"
#include "megatron/comm/threads.h"
#include "tests/comm/values.h"
#include "tests/support/captured_output.h"
#include "tests/support/message_of.h"

// A time-out measures silence, not work. Ranks that are processes: processes/process_test.cpp.
namespace megatron::comm {
namespace {

using testing::HasSubstr;

constexpr Stream kWorkingCpu{};
// Longer than a busy machine leaves a thread waiting.
constexpr auto kWorkingTimeout = std::chrono::milliseconds(1000);

void work_for(std::chrono::milliseconds time) {
  const auto end = std::chrono::steady_clock::now() + time;
  while (std::chrono::steady_clock::now() < end) std::this_thread::yield();
}

TEST(WorkingTest, OthersWaitForARankAtWork) {
  CapturedStderr captured_err;
  run_ranks(3,
            [](const Group& world) {
              if (world.rank() == 1) {
                const Working working(world, "saving iteration 40");
                work_for(2 * kWorkingTimeout);
              }
              barrier(world);
              std::vector<float> x(1);
              if (world.rank() == 1) {
                const Working working(world, "building an index");
                work_for(2 * kWorkingTimeout);
                send(view_of(x), 0, world, kWorkingCpu);
              } else if (world.rank() == 0) {
                recv(view_of(x), 1, world, kWorkingCpu);
              }
            },
            {.timeout = kWorkingTimeout});
  EXPECT_THAT(captured_err.text(),
              testing::AllOf(HasSubstr("waiting beyond the time-out of 1 s: rank 1 is saving "
                                       "iteration 40"),
                             HasSubstr("rank 1 is building an index")));
}

// Also while they wait for a third rank that waits for it, and though another one has just ended.
TEST(WorkingTest, SilenceAfterTheWorkIsATimeOut) {
  const CapturedStderr captured_err;
  std::atomic<bool> is_over{false};
  std::string error;
  run_ranks(2,
            [&](const Group& world) {
              if (world.rank() == 1) {
                {
                  const Working working(world, "saving");
                  work_for(2 * kWorkingTimeout);
                }
                while (!is_over) std::this_thread::yield();
                return;
              }
              const auto begin = std::chrono::steady_clock::now();
              error = message_of<CommError>([&] { barrier(world); });
              EXPECT_GE(std::chrono::steady_clock::now() - begin, 2 * kWorkingTimeout);
              is_over = true;
            },
            {.timeout = kWorkingTimeout});
  EXPECT_THAT(error, HasSubstr("waited 1 s for rank 1"));
}

// Inside the scope a rank may wait for others, whose silence is noticed all the same.
TEST(WorkingTest, AWaitInsideTheScopeIsNoWork) {
  const CapturedStderr captured_err;
  std::atomic<bool> is_over{false};
  run_ranks(2,
            [&](const Group& world) {
              if (world.rank() == 1) {
                while (!is_over) std::this_thread::yield();
                return;
              }
              const Working working(world, "saving together");
              EXPECT_THAT(message_of<CommError>([&] { barrier(world); }),
                          HasSubstr("waited 1 s for rank 1"));
              is_over = true;
            },
            {.timeout = kWorkingTimeout});
}

// A rank that enters a call was at work until then: its silence begins with the call.
TEST(WorkingTest, SilenceBeginsWithACallInsideTheScope) {
  const CapturedStderr captured_err;
  using Clock = std::chrono::steady_clock;
  std::atomic<Clock::time_point> call;
  run_ranks(2,
            [&](const Group& world) {
              barrier(world);
              std::vector<float> x(1);
              if (world.rank() == 1) {
                const Working working(world, "saving");
                work_for(3 * kWorkingTimeout / 2);
                call = Clock::now();
                message_of<CommError>([&] { recv(view_of(x), 0, world, kWorkingCpu); });
                return;
              }
              message_of<CommError>([&] { recv(view_of(x), 1, world, kWorkingCpu); });
              EXPECT_GE(Clock::now() - call.load(), kWorkingTimeout);
            },
            {.timeout = kWorkingTimeout});
}

}  // namespace
}  // namespace megatron::comm

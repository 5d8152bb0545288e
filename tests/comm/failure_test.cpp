#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <fstream>
#include <string>
#include <thread>
#include <vector>

#include "megatron/comm/collectives.h"
#include "megatron/comm/threads.h"
#include "megatron/core/error.h"
#include "megatron/core/log.h"
#include "tests/comm/values.h"
#include "tests/support/captured_output.h"
#include "tests/support/message_of.h"
#include "tests/support/sanitizers.h"

// A rank that is gone, late or elsewhere never leaves the others waiting.
namespace megatron::comm {
namespace {

using testing::HasSubstr;
using testing::MatchesRegex;

constexpr Stream kFailureCpu{};
constexpr ThreadRanksOptions kFailureOptions{.timeout = std::chrono::seconds(30)};
constexpr ThreadRanksOptions kImpatient{.timeout = std::chrono::milliseconds(500)};

void reduce_ones(const Group& group, size_t count = 4) {
  std::vector<float> x(count, 1);
  all_reduce(view_of(x), Reduce::kSum, group, kFailureCpu);
}

TEST(FailureTest, ARankThatThrowsReleasesTheOthers) {
  std::atomic<int> num_released{0};
  const std::string message = message_of<ConfigError>([&] {
    run_ranks(
        4,
        [&](const Group& world) {
          const std::array<int, 2> pair = {world.rank() / 2 * 2, world.rank() / 2 * 2 + 1};
          const Group half = world.subgroup("tensor", pair);
          reduce_ones(world);
          if (world.rank() == 3) throw ConfigError("the corpus is empty");
          const std::string text = message_of<CommError>([&] {
            if (world.rank() == 1) {
              std::vector<float> x(1);
              recv(view_of(x), 0, half, kFailureCpu);
            } else {
              reduce_ones(world.rank() == 2 ? half : world);
            }
          });
          EXPECT_THAT(text, HasSubstr("was released because rank 3 of the world failed: the corpus "
                                      "is empty"));
          ++num_released;
        },
        kFailureOptions);
  });
  EXPECT_EQ(message, "the corpus is empty");
  EXPECT_EQ(num_released, 3);
}

// A rank that waits for its GPU alone asks.
TEST(FailureTest, IsKnownWithoutACall) {
  std::atomic<bool> was_told{false};
  const std::string message = message_of<ConfigError>([&] {
    run_ranks(
        2,
        [&](const Group& world) {
          expect_no_failure(world);
          barrier(world);
          if (world.rank() == 1) throw ConfigError("the corpus is empty");
          const std::string text = message_of<CommError>([&] {
            for (int tries = 0; tries < 30000; ++tries) {
              expect_no_failure(world);
              std::this_thread::sleep_for(std::chrono::milliseconds(1));
            }
          });
          was_told = text ==
                     "group world: rank 0 (rank 0 of the world) was released because rank 1 of the "
                     "world failed: the corpus is empty";
        },
        kFailureOptions);
  });
  EXPECT_EQ(message, "the corpus is empty");
  EXPECT_TRUE(was_told);
}

TEST(FailureTest, AReleaseIsNotWhatIsReported) {
  for (int i = 0; i < 20; ++i) {
    EXPECT_THROW(run_ranks(
                     3,
                     [](const Group& world) {
                       if (world.rank() == 1) throw std::out_of_range("mine");
                       for (;;) reduce_ones(world);
                     },
                     kFailureOptions),
                 std::out_of_range);
  }
}

TEST(FailureTest, DifferentCallsAreNamed) {
  run_ranks(
      3,
      [](const Group& world) {
        for (int i = 0; i < 3; ++i) {
          EXPECT_EQ(
              message_of<CommError>([&] { reduce_ones(world, world.rank() == 2 ? 5 : 4); }),
              "group world: members made different calls: rank 0 (rank 0 of the world) called "
              "all_reduce(sum, 4 x float32), rank 2 (rank 2 of the world) called "
              "all_reduce(sum, 5 x float32)");
          EXPECT_THAT(message_of<CommError>([&] {
                        if (world.rank() == 1) return barrier(world);
                        reduce_ones(world);
                      }),
                      HasSubstr("rank 1 (rank 1 of the world) called barrier"));
        }
        reduce_ones(world);  // the group can still be used
      },
      kFailureOptions);
}

TEST(FailureTest, AMemberThatDoesNotComeIsNamed) {
  CapturedStderr captured_err;
  std::atomic<bool> is_over{false};
  run_ranks(
      3,
      [&](const Group& world) {
        reduce_ones(world);
        if (world.rank() == 1) return;
        const std::array<int, 2> two = {0, 2};
        const Group group = world.subgroup("embedding", two);
        if (world.rank() == 2) {  // busy elsewhere
          while (!is_over) std::this_thread::yield();
          EXPECT_THAT(message_of<CommError>([&] { barrier(group); }),
                      HasSubstr("was released because rank 0 of the world failed: broadcast"));
          return;
        }
        std::vector<float> x(8);
        const char* const awaited =
            "in group embedding: rank 0 \\(rank 0 of the world\\) waited 0.5 s for rank 1 \\(rank "
            "2 of the world\\) \\(last call: all_reduce\\(sum, 4 x float32\\) in group world, done "
            ".* s ago\\)";
        EXPECT_THAT(message_of<CommError>([&] { recv(view_of(x), 1, group, kFailureCpu); }),
                    MatchesRegex("recv\\(8 x float32 from 1\\) " + std::string(awaited)));
        EXPECT_THAT(message_of<CommError>([&] { broadcast(view_of(x), 0, group, kFailureCpu); }),
                    MatchesRegex("broadcast\\(8 x float32, root 0\\) " + std::string(awaited)));
        is_over = true;
      },
      kImpatient);
  EXPECT_THAT(captured_err.text(), HasSubstr("the last calls of all ranks"));
}

TEST(FailureTest, AMemberThatEndsIsNamedAtOnce) {
  run_ranks(
      2,
      [](const Group& world) {
        reduce_ones(world);
        if (world.rank() == 1) return send(view_of(std::vector<float>(3)), 0, world, kFailureCpu);
        std::vector<float> x(3);
        recv(view_of(x), 1, world, kFailureCpu);  // sent before the end: arrives
        EXPECT_THAT(message_of<CommError>([&] { recv(view_of(x), 1, world, kFailureCpu); }),
                    HasSubstr("waits in vain for rank 1 (rank 1 of the world), whose program has "
                              "ended"));
        EXPECT_THAT(message_of<CommError>([&] { reduce_ones(world); }),
                    HasSubstr("waits in vain for rank 1 (rank 1 of the world) (last call: send"));
      },
      kFailureOptions);
}

#if !MG_ADDRESS_SANITIZER && !MG_THREAD_SANITIZER
rlim_t mapped_bytes() {
  rlim_t pages = 0;
  std::ifstream("/proc/self/statm") >> pages;
  return pages * static_cast<rlim_t>(::sysconf(_SC_PAGESIZE));
}

// Ranks that have started do not wait for one that cannot start.
TEST(FailureTest, AThreadThatCannotBeStartedIsNamed) {
  const pid_t child = ::fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    // Room for the stacks of some threads, of 8 MiB, with or without an arena of 64 MiB for what
    // they allocate, and 4 MiB beyond the last stack: OpenMP ends a process that has none.
    const rlim_t room = mapped_bytes() + (rlim_t{64 + 4 * 8 + 4} << 20);
    const rlimit limit = {room, room};
    ::setrlimit(RLIMIT_AS, &limit);
    std::string message;
    try {
      run_ranks(
          200, [](const Group& world) { barrier(world); }, kFailureOptions);
    } catch (const CommError& error) {
      message = error.what();
    }
    const bool is_named = message.find(" of 200 cannot be started: ") != std::string::npos &&
                          message.find("ulimit -u") != std::string::npos;
    ::_exit(is_named ? 0 : 1);
  }
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << status;
}
#endif

// Of the last calls, also when the rank that times out is one that prints no warnings.
TEST(FailureTest, ASilentRankPrintsTheLastCalls) {
  CapturedStderr captured_err;
  std::atomic<bool> is_over{false};
  run_ranks(
      2,
      [&](const Group& world) {
        if (world.rank() == 0) {
          while (!is_over) std::this_thread::yield();
          return;
        }
        const LogScope silent(false);
        EXPECT_THROW(barrier(world), CommError);
        is_over = true;
      },
      kImpatient);
  EXPECT_THAT(captured_err.text(), HasSubstr("the last calls of all ranks"));
}

// The memory of a rank that gave up is never touched by one that comes later.
TEST(FailureTest, GivingUpAndComingLateMayMeet) {
  const CapturedStderr captured_err;
  for (int i = 0; i < 40; ++i) {
    std::atomic<int> num_done{0};
    try {
      run_ranks(2,
                [&](const Group& world) {
                  if (world.rank() == 1) {
                    const auto until =
                        std::chrono::steady_clock::now() + std::chrono::microseconds(950);
                    while (std::chrono::steady_clock::now() < until) {
                    }
                  }
                  reduce_ones(world, 1000);
                  ++num_done;
                },
                {.timeout = std::chrono::milliseconds(1)});
      EXPECT_EQ(num_done, 2);
    } catch (const CommError& error) {
      EXPECT_THAT(error.what(), HasSubstr("waited 0.001 s for rank"));
      EXPECT_EQ(num_done, 0);
    }
  }
}

}  // namespace
}  // namespace megatron::comm

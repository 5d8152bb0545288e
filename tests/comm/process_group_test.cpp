#include "megatron/comm/processes/process_group.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <array>
#include <atomic>
#include <chrono>
#include <cstring>
#include <memory>
#include <span>
#include <string>
#include <thread>
#include <utility>

#include "megatron/comm/collectives.h"
#include "megatron/comm/threads.h"
#include "megatron/core/error.h"
#include "tests/support/captured_output.h"
#include "tests/support/message_of.h"

// Members are threads here, each with its own mapping of the shared memory. process_test.cpp and
// failing_job.cpp have members that are processes.
namespace megatron::comm {
namespace {

using testing::HasSubstr;

constexpr ThreadRanksOptions kProcessGroupOptions{.timeout = std::chrono::seconds(30)};
constexpr ThreadRanksOptions kProcessGroupImpatient{.timeout = std::chrono::milliseconds(500)};
constexpr Call kMeeting{Operation::kConnect};

std::unique_ptr<ProcessGroup> made(const Group& world, int64_t extra_bytes = 0) {
  ProcessGroup::Made made = ProcessGroup::make(world.transport(), extra_bytes);
  EXPECT_EQ(made.problem, "");
  return std::move(made.group);
}

template <class T>
std::span<const std::byte> bytes_of(const T& value) {
  return std::as_bytes(std::span(&value, 1));
}

Call message(Operation operation, int peer, int64_t count = sizeof(int)) {
  return {operation, DType::kUInt8, count, Reduce::kSum, peer};
}
void post(ProcessGroup& group, int to, int value) {
  group.post(message(Operation::kSend, to), bytes_of(value));
}
int received(ProcessGroup& group, int from) {
  int value = 0;
  group.receive(message(Operation::kRecv, from), std::as_writable_bytes(std::span(&value, 1)));
  return value;
}

TEST(SharedSegmentTest, HasTheSameMemoryForAllWhoOpenIt) {
  SharedSegment mine = SharedSegment::create(10000);
  const SharedSegment theirs = SharedSegment::open(mine.name(), 10000);
  for (int64_t i = 0; i < mine.bytes(); ++i) ASSERT_EQ(mine.data()[i], std::byte{0});
  mine.data()[9999] = std::byte{7};
  EXPECT_EQ(theirs.data()[9999], std::byte{7});
  EXPECT_NE(theirs.data(), mine.data());

  struct stat file {};
  ASSERT_EQ(::stat(("/dev/shm" + mine.name()).c_str(), &file), 0);
  EXPECT_EQ(file.st_mode & 0777u, 0600u);
  EXPECT_THAT(message_of<CommError>([&] { SharedSegment::open(mine.name(), 5000); }),
              HasSubstr("has not 5000 bytes"));
  mine.remove_name();
  EXPECT_THAT(message_of<CommError>([&] { SharedSegment::open(mine.name(), 10000); }),
              HasSubstr("shared memory: shm_open: No such file"));
  EXPECT_EQ(theirs.data()[9999], std::byte{7});
}

TEST(SharedSegmentTest, ItsNameEndsWithItsCreator) {
  std::string name;
  { name = SharedSegment::create(100).name(); }
  EXPECT_THROW(SharedSegment::open(name, 100), CommError);
}

TEST(ProcessGroupTest, PartsAreReadBetweenMeetingAndParting) {
  run_ranks(
      3,
      [](const Group& world) {
        const auto group = made(world);
        for (int round = 0; round < 300; ++round) {
          const std::array<int, 2> mine = {world.rank(), round};
          group->enter(kMeeting, bytes_of(mine));
          for (int member = 0; member < world.size(); ++member) {
            std::array<int, 2> theirs{};
            std::memcpy(theirs.data(), group->part_of(member), sizeof(theirs));
            ASSERT_EQ(theirs, (std::array<int, 2>{member, round}));
          }
          group->leave();
        }
      },
      kProcessGroupOptions);
}

TEST(ProcessGroupTest, ItsMemoryIsNobodyElses) {
  run_ranks(
      2,
      [](const Group& world) {
        const auto group = made(world, 5000);
        ASSERT_EQ(group->extra().size(), 8192u);
        EXPECT_EQ(reinterpret_cast<uintptr_t>(group->extra().data()) % 4096, 0u);
        if (world.rank() == 0) group->extra()[4999] = std::byte{3};
        group->enter(kMeeting, {});  // all have opened it, so its name is gone
        EXPECT_THROW(SharedSegment::open(group->segment().name(), group->segment().bytes()),
                     CommError);
        EXPECT_EQ(group->extra()[4999], std::byte{3});
        group->leave();
      },
      kProcessGroupOptions);
}

TEST(ProcessGroupTest, DifferentCallsAreNamed) {
  run_ranks(
      3,
      [](const Group& world) {
        const auto group = made(world);
        const Call call{Operation::kAllReduce, DType::kFloat32, world.rank() == 2 ? 4 : 5};
        EXPECT_EQ(message_of<CommError>([&] { group->enter(call, {}); }),
                  "group world: members made different calls: rank 0 (rank 0 of the world) called "
                  "all_reduce(sum, 5 x float32), rank 2 (rank 2 of the world) called "
                  "all_reduce(sum, 4 x float32)");
        group->enter(kMeeting, {});  // the group can still be used
        group->leave();
      },
      kProcessGroupOptions);
}

TEST(ProcessGroupTest, AMemberThatDoesNotComeIsNamed) {
  std::atomic<int> num_waiting{2};
  CapturedStderr captured_err;
  run_ranks(
      3,
      [&](const Group& world) {
        const auto group = made(world);
        const Call last{Operation::kAllReduce, DType::kFloat32, 5};
        group->enter(last, {});
        group->leave();
        if (world.rank() == 0) {
          while (num_waiting > 0) std::this_thread::yield();
          return;
        }
        const std::string text = message_of<CommError>([&] { group->enter(kMeeting, {}); });
        --num_waiting;
        if (text.find("was released") != std::string::npos) return;
        EXPECT_THAT(text, HasSubstr("in group world: rank"));
        EXPECT_THAT(text, HasSubstr("waited 0.5 s for rank 0 (rank 0 of the world) (last call in "
                                    "this group: all_reduce(sum, 5 x float32))"));
      },
      kProcessGroupImpatient);
  EXPECT_THAT(captured_err.text(), HasSubstr("the last calls of all ranks"));
}

TEST(ProcessGroupTest, ARankThatThrowsReleasesTheOthers) {
  std::atomic<int> num_released{0};
  const std::string message = message_of<ConfigError>([&] {
    run_ranks(
        3,
        [&](const Group& world) {
          const auto group = made(world);
          if (world.rank() == 1) throw ConfigError("the disk is full");
          const auto wait = [&] {
            if (world.rank() == 0) group->enter(kMeeting, {});
            if (world.rank() == 2) received(*group, 1);
          };
          EXPECT_THAT(
              message_of<CommError>(wait),
              HasSubstr("was released because rank 1 of the world failed: the disk is full"));
          ++num_released;
        },
        kProcessGroupOptions);
  });
  EXPECT_EQ(message, "the disk is full");
  EXPECT_EQ(num_released, 2);
}

// More than the mailboxes hold, in both directions.
TEST(ProcessGroupTest, MessagesArriveInOrder) {
  run_ranks(
      2,
      [](const Group& world) {
        const auto group = made(world);
        const int other = 1 - world.rank();
        for (int i = 0; i < 1000; ++i) {
          const uint64_t number = group->num_posted(other);
          EXPECT_EQ(number, static_cast<uint64_t>(i));
          post(*group, other, 10 * i + world.rank());
          ASSERT_EQ(received(*group, other), 10 * i + other);
          if (i == 0) {
            barrier(world);
            EXPECT_FALSE(group->is_taken(other, number));
            barrier(world);
          }
          group->take(other);
        }
        barrier(world);
        EXPECT_TRUE(group->is_taken(other, 999));
        EXPECT_FALSE(group->is_taken(other, 1000));
      },
      kProcessGroupOptions);
}

TEST(ProcessGroupTest, ASenderWaitsOnlyForAFullMailbox) {
  std::atomic<bool> is_full{false};
  const CapturedStderr captured_err;
  run_ranks(
      2,
      [&](const Group& world) {
        const auto group = made(world);
        if (world.rank() == 0) {
          for (uint64_t i = 0; i < ProcessGroup::kMessages; ++i)
            post(*group, 1, static_cast<int>(i));
          EXPECT_THAT(message_of<CommError>([&] { post(*group, 1, 0); }),
                      HasSubstr("waited 0.5 s for rank 1 (rank 1 of the world) (last call in this "
                                "group: none) to receive"));
          is_full = true;
        } else {
          while (!is_full) std::this_thread::yield();
          for (uint64_t i = 0; i < ProcessGroup::kMessages; ++i) {
            EXPECT_EQ(received(*group, 0), static_cast<int>(i));
          }
        }
      },
      kProcessGroupImpatient);
}

TEST(ProcessGroupTest, AMessageOfAnotherSizeIsNamed) {
  run_ranks(
      2,
      [](const Group& world) {
        const auto group = made(world);
        if (world.rank() == 0) return post(*group, 1, 5);
        int value = 0;
        const auto receive = [&] {
          group->receive(message(Operation::kRecv, 0, 7),
                         std::as_writable_bytes(std::span(&value, 1)));
        };
        EXPECT_THAT(message_of<CommError>(receive),
                    HasSubstr("rank 1 (rank 1 of the world) expects a message that rank 0 (rank 0 "
                              "of the world) did not send: send("));
      },
      kProcessGroupOptions);
}

TEST(ProcessGroupTest, AllKnowTheFirstProblem) {
  run_ranks(
      3,
      [](const Group& world) {
        EXPECT_EQ(first_problem(world.transport(), ""), "");
        const std::string own = world.rank() == 0 ? "" : std::string(500, 'x');
        EXPECT_EQ(first_problem(world.transport(), own),
                  "rank 1 (rank 1 of the world): " + std::string(199, 'x'));
      },
      kProcessGroupOptions);
}

}  // namespace
}  // namespace megatron::comm

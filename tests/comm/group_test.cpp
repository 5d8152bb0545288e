#include "megatron/comm/group.h"

#include <gtest/gtest.h>

#include <array>
#include <atomic>
#include <memory>
#include <vector>

#include "megatron/comm/broadcast_object.h"
#include "megatron/comm/collectives.h"
#include "megatron/comm/threads.h"
#include "megatron/core/error.h"
#include "tests/comm/values.h"
#include "tests/support/message_of.h"

namespace megatron::comm {
namespace {

constexpr Stream kGroupCpu{};
constexpr ThreadRanksOptions kGroupOptions{.timeout = std::chrono::seconds(30)};

int64_t sum_of(int64_t mine, const Group& group) {
  std::vector<int64_t> x = {mine};
  all_reduce(view_of(x), Reduce::kSum, group, kGroupCpu);
  return x[0];
}

TEST(GroupTest, WorldKnowsItsRanks) {
  run_ranks(
      3,
      [](const Group& world) {
        EXPECT_EQ(world.size(), 3);
        EXPECT_EQ(world.name(), "world");
        EXPECT_EQ(std::vector<int>(world.world_ranks().begin(), world.world_ranks().end()),
                  (std::vector<int>{0, 1, 2}));
      },
      kGroupOptions);
}

// 8 ranks as a grid of 2 x 2 x 2; the pairs of each axis work at the same time.
TEST(GroupTest, SubgroupsOfSubgroupsWorkAtOnce) {
  run_ranks(
      8,
      [](const Group& world) {
        const int r = world.rank();
        const std::array<int, 4> half = {r / 4 * 4, r / 4 * 4 + 1, r / 4 * 4 + 2, r / 4 * 4 + 3};
        const Group host = world.subgroup("host", half);
        EXPECT_EQ(host.rank(), r % 4);
        const std::array<int, 2> pair = {host.rank() / 2 * 2, host.rank() / 2 * 2 + 1};
        const Group tensor = host.subgroup("tensor", pair);
        EXPECT_EQ(tensor.world_ranks()[0], r / 2 * 2);
        const std::array<int, 2> across = {r % 4 + 4, r % 4};  // the order is the caller's
        const Group data = world.subgroup("data", across);
        EXPECT_EQ(data.rank(), r < 4 ? 1 : 0);
        for (int i = 0; i < 20; ++i) {
          ASSERT_EQ(sum_of(r, tensor), r / 2 * 4 + 1);
          if (r < 4) {  // the other half does without
            ASSERT_EQ(sum_of(r, host), 6);
          }
          ASSERT_EQ(sum_of(r, data), 2 * (r % 4) + 4);
        }
      },
      kGroupOptions);
}

TEST(GroupTest, EqualSubgroupsAreApart) {
  run_ranks(
      2,
      [](const Group& world) {
        const std::array<int, 2> both = {0, 1};
        const Group first = world.subgroup("pipeline", both);
        const Group second = world.subgroup("pipeline", both);
        const int other = 1 - world.rank();
        send(view_of(std::vector<int32_t>{1}), other, first, kGroupCpu);
        send(view_of(std::vector<int32_t>{2}), other, second, kGroupCpu);
        std::vector<int32_t> x(1);
        recv(view_of(x), other, second, kGroupCpu);
        EXPECT_EQ(x[0], 2);
        recv(view_of(x), other, first, kGroupCpu);
        EXPECT_EQ(x[0], 1);
      },
      kGroupOptions);
}

TEST(GroupTest, OfOneIsTheIdentity) {
  run_ranks(
      2,
      [](const Group& world) {
        const std::array<int, 1> me = {world.rank()};
        const Group alone = world.subgroup("data", me);
        EXPECT_EQ(alone.size(), 1);
        EXPECT_EQ(alone.name(), "data");
        EXPECT_EQ(alone.world_ranks()[0], world.rank());
        EXPECT_EQ(sum_of(world.rank(), alone), world.rank());
        const std::array<int, 1> first = {0};
        EXPECT_EQ(alone.subgroup("tensor", first).world_ranks()[0], world.rank());
      },
      kGroupOptions);
}

TEST(GroupTest, WrongMembersAreABug) {
  run_ranks(
      2,
      [](const Group& world) {
        const std::array<int, 1> other = {1 - world.rank()};
        EXPECT_EQ(message_of<InternalError>([&] { world.subgroup("data", other); }),
                  world.rank() == 0 ? "rank 0 of group world makes subgroup data of ranks [1], to "
                                      "which it does not belong"
                                    : "rank 1 of group world makes subgroup data of ranks [0], to "
                                      "which it does not belong");
        const std::array<int, 2> outside = {0, 2};
        EXPECT_EQ(message_of<InternalError>([&] { world.subgroup("data", outside); }),
                  "group world of 2 ranks has no rank 2 for its subgroup data");
        const std::array<int, 2> twice = {1, 1};
        EXPECT_EQ(message_of<InternalError>([&] { world.subgroup("data", twice); }),
                  "subgroup data names rank 1 of group world twice");
      },
      kGroupOptions);
}

TEST(MadeOnceTest, ThreadsShareWhatRank0Makes) {
  std::atomic<int> count = 0;
  std::array<const int*, 4> seen{};
  const auto make = [&] { return std::make_shared<const int>(++count); };
  run_ranks(4, [&](const Group& world) {
    const std::shared_ptr<const int> shared = broadcast_object(world, make);
    EXPECT_EQ(*shared, 1);
    seen[static_cast<size_t>(world.rank())] = shared.get();
    barrier(world);  // all addresses are of living objects
  });
  for (const int* each : seen) EXPECT_EQ(each, seen[0]);
  EXPECT_EQ(*broadcast_object(Group(), make), 2);
}

TEST(MadeOnceTest, AnErrorReleasesAll) {
  EXPECT_EQ(message_of<IoError>([] {
              run_ranks(3, [](const Group& world) {
                broadcast_object(world, []() -> std::shared_ptr<const int> {
                  throw IoError("vocab.json: no such file");
                });
              });
            }),
            "vocab.json: no such file");
}

}  // namespace
}  // namespace megatron::comm

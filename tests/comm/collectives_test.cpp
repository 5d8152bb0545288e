#include "megatron/comm/collectives.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <limits>
#include <numeric>
#include <vector>

#include "megatron/comm/threads.h"
#include "megatron/core/half.h"
#include "megatron/core/parallel_for.h"
#include "tests/comm/values.h"
#include "tests/support/message_of.h"

namespace megatron::comm {
namespace {

constexpr Stream kCpu{};
constexpr ThreadRanksOptions kOptions{.timeout = std::chrono::seconds(30)};
constexpr std::array kSizes = {1, 2, 3, 4, 8};

template <class T>
std::vector<uint8_t> bits(const std::vector<T>& list) {
  std::vector<uint8_t> bytes(list.size() * sizeof(T));
  if (!list.empty()) std::memcpy(bytes.data(), list.data(), bytes.size());
  return bytes;
}

// The definition: fp32 for 16-bit elements, in rank order, rounded once.
template <class T>
std::vector<T> reduced(int size, int64_t count, Reduce op) {
  using Sum = std::conditional_t<sizeof(T) == 2, float, T>;
  std::vector<Sum> sums;
  for (const T value : values<T>(0, count)) sums.push_back(static_cast<Sum>(value));
  for (int rank = 1; rank < size; ++rank) {
    const std::vector<T> x = values<T>(rank, count);
    for (size_t i = 0; i < x.size(); ++i) {
      const Sum value = static_cast<Sum>(x[i]);
      sums[i] = op == Reduce::kSum ? sums[i] + value : std::max(sums[i], value);
    }
  }
  std::vector<T> result;
  for (const Sum sum : sums) result.push_back(static_cast<T>(sum));
  return result;
}

template <class T>
class ReductionTest : public testing::Test {};
using Reducible = testing::Types<float, double, Float16, BFloat16, int64_t, int32_t>;
TYPED_TEST_SUITE(ReductionTest, Reducible);

TYPED_TEST(ReductionTest, AllReduceIsTheOrderedSumOnEveryRank) {
  for (const int size : kSizes) {
    for (const int64_t count : {0, 1, 7, 1000, 4099}) {
      for (const Reduce op : {Reduce::kSum, Reduce::kMax}) {
        const std::vector<TypeParam> want = reduced<TypeParam>(size, count, op);
        run_ranks(
            size,
            [&](const Group& world) {
              std::vector<TypeParam> x = values<TypeParam>(world.rank(), count);
              all_reduce(view_of(x), op, world, kCpu);
              EXPECT_EQ(bits(x), bits(want)) << size << " ranks, " << count << " elements";
            },
            kOptions);
      }
    }
  }
}

TYPED_TEST(ReductionTest, ReduceScatterGivesEachRankItsPart) {
  for (const int size : kSizes) {
    const int64_t count = 1025;
    std::vector<TypeParam> want = reduced<TypeParam>(size, size * count, Reduce::kSum);
    run_ranks(
        size,
        [&](const Group& world) {
          const std::vector<TypeParam> x = values<TypeParam>(world.rank(), size * count);
          std::vector<TypeParam> y(static_cast<size_t>(count));
          reduce_scatter(view_of(y), view_of(x), Reduce::kSum, world, kCpu);
          const TypeParam* const part = want.data() + count * world.rank();
          EXPECT_EQ(bits(y), bits(std::vector<TypeParam>(part, part + count)));

          std::vector<TypeParam> in_place = x;
          const TensorView own = part_of(in_place, world.rank(), size);
          reduce_scatter(own, view_of(in_place), Reduce::kSum, world, kCpu);
          EXPECT_EQ(std::memcmp(own.data, part, static_cast<size_t>(own.bytes())), 0);
        },
        kOptions);
  }
}

TEST(CollectivesTest, MaximumWithNanIsNan) {
  run_ranks(
      3,
      [](const Group& world) {
        std::vector<float> x = {1, 2, 3};
        x[static_cast<size_t>(world.rank())] = std::numeric_limits<float>::quiet_NaN();
        all_reduce(view_of(x), Reduce::kMax, world, kCpu);
        for (const float value : x) EXPECT_TRUE(std::isnan(value));
      },
      kOptions);
}

template <class T>
class MoveTest : public testing::Test {};
using AllTypes = testing::Types<float, double, Float16, BFloat16, int64_t, int32_t, int16_t, int8_t,
                                uint64_t, uint32_t, uint16_t, uint8_t>;
TYPED_TEST_SUITE(MoveTest, AllTypes);

TYPED_TEST(MoveTest, AllGatherPutsPartsInOrder) {
  for (const int size : kSizes) {
    const int64_t count = 131;
    std::vector<TypeParam> want;
    for (int rank = 0; rank < size; ++rank) {
      const std::vector<TypeParam> part = values<TypeParam>(rank, count);
      want.insert(want.end(), part.begin(), part.end());
    }
    run_ranks(
        size,
        [&](const Group& world) {
          const std::vector<TypeParam> x = values<TypeParam>(world.rank(), count);
          std::vector<TypeParam> y(want.size());
          all_gather(view_of(y), view_of(x), world, kCpu);
          EXPECT_EQ(bits(y), bits(want));

          std::vector<TypeParam> in_place(want.size());
          const TensorView own = part_of(in_place, world.rank(), size);
          std::memcpy(own.data, x.data(), static_cast<size_t>(own.bytes()));
          all_gather(view_of(in_place), own, world, kCpu);
          EXPECT_EQ(bits(in_place), bits(want));
        },
        kOptions);
  }
}

TYPED_TEST(MoveTest, BroadcastFromEveryRoot) {
  for (const int size : kSizes) {
    run_ranks(
        size,
        [&](const Group& world) {
          for (int root = 0; root < size; ++root) {
            std::vector<TypeParam> x = values<TypeParam>(world.rank(), 257);
            broadcast(view_of(x), root, world, kCpu);
            EXPECT_EQ(bits(x), bits(values<TypeParam>(root, 257)));
          }
        },
        kOptions);
  }
}

TYPED_TEST(MoveTest, AllToAllTransposesParts) {
  for (const int size : kSizes) {
    const int64_t count = 33;
    run_ranks(
        size,
        [&](const Group& world) {
          const std::vector<TypeParam> x = values<TypeParam>(world.rank(), size * count);
          std::vector<TypeParam> y(x.size());
          all_to_all(view_of(y), view_of(x), world, kCpu);
          for (int rank = 0; rank < size; ++rank) {
            std::vector<TypeParam> theirs = values<TypeParam>(rank, size * count);
            const TensorView want = part_of(theirs, world.rank(), size);
            const TensorView got = part_of(y, rank, size);
            EXPECT_EQ(std::memcmp(got.data, want.data, static_cast<size_t>(got.bytes())), 0);
          }
        },
        kOptions);
  }
}

TEST(CollectivesTest, ManyInARowDoNotMix) {
  run_ranks(
      4,
      [](const Group& world) {
        for (int i = 0; i < 300; ++i) {
          std::vector<int64_t> x = {world.rank() + i, i};
          all_reduce(view_of(x), Reduce::kSum, world, kCpu);
          ASSERT_EQ(x, (std::vector<int64_t>{6 + 4 * i, 4 * i}));
          if (i % 7 == 0) barrier(world);
        }
      },
      kOptions);
}

TEST(CollectivesTest, InputsMayBeOverwrittenAtOnce) {
  run_ranks(
      4,
      [](const Group& world) {
        std::vector<int64_t> x(20000);
        std::vector<int64_t> y(4 * x.size());
        for (int64_t i = 0; i < 20; ++i) {
          x.assign(x.size(), i);
          all_gather(view_of(y), view_of(x), world, kCpu);
          x.assign(x.size(), -1);  // slower ranks must have read it
          ASSERT_EQ(std::count(y.begin(), y.end(), i), static_cast<int64_t>(y.size()));
        }
      },
      kOptions);
}

TEST(CollectivesTest, BarrierWaitsForAll) {
  std::array<int, 4> entered{};
  run_ranks(
      4,
      [&](const Group& world) {
        entered[static_cast<size_t>(world.rank())] = 1;
        barrier(world);
        EXPECT_EQ(std::accumulate(entered.begin(), entered.end(), 0), 4);
      },
      kOptions);
}

TEST(CollectivesTest, StartedOnesAreDoneOnTheCpu) {
  run_ranks(
      2,
      [](const Group& world) {
        std::vector<int32_t> x = {1 + world.rank()};
        Pending sum = start_all_reduce(view_of(x), Reduce::kSum, world, kCpu);
        EXPECT_EQ(x[0], 3);
        sum.wait();
        sum.wait();
        std::vector<int32_t> y(2);
        start_all_gather(view_of(y), view_of(x), world, kCpu).wait();
        EXPECT_EQ(y, (std::vector<int32_t>{3, 3}));
        start_reduce_scatter(view_of(x), view_of(y), Reduce::kSum, world, kCpu).wait();
        EXPECT_EQ(x[0], 6);
        const std::vector<int32_t> to_ranks = {10 * world.rank(), 10 * world.rank() + 1};
        start_all_to_all(view_of(y), view_of(to_ranks), world, kCpu).wait();
        EXPECT_EQ(y, (std::vector<int32_t>{world.rank(), 10 + world.rank()}));
      },
      kOptions);
}

TEST(CollectivesTest, ARankAloneNeedsNobody) {
  const Group alone;
  EXPECT_EQ(alone.size(), 1);
  EXPECT_EQ(alone.rank(), 0);
  std::vector<float> x = {1, 2};
  std::vector<float> y(2);
  all_reduce(view_of(x), Reduce::kSum, alone, kCpu);
  all_gather(view_of(y), view_of(x), alone, kCpu);
  EXPECT_EQ(y, x);
  y = {0, 0};
  reduce_scatter(view_of(y), view_of(x), Reduce::kMax, alone, kCpu);
  EXPECT_EQ(y, x);
  broadcast(view_of(x), 0, alone, kCpu);
  barrier(alone);
  EXPECT_EQ(x, (std::vector<float>{1, 2}));
}

TEST(CollectivesTest, ViewsThatDoNotFitAreRefused) {
  run_ranks(
      2,
      [](const Group& world) {
        std::vector<float> x(3);
        std::vector<float> y(5);
        std::vector<double> z(6);
        std::vector<uint8_t> bytes(4);
        EXPECT_EQ(message_of<ShapeError>([&] { all_gather(view_of(y), view_of(x), world, kCpu); }),
                  "all_gather: 5 elements are not 2 times 3");
        EXPECT_EQ(message_of<ShapeError>(
                      [&] { reduce_scatter(view_of(x), view_of(y), Reduce::kSum, world, kCpu); }),
                  "reduce_scatter: 5 elements are not 2 times 3");
        EXPECT_EQ(message_of<DtypeError>([&] { all_gather(view_of(z), view_of(x), world, kCpu); }),
                  "all_gather has dtype float32, expected float64");
        EXPECT_EQ(message_of<ShapeError>([&] { all_to_all(view_of(x), view_of(x), world, kCpu); }),
                  "all_to_all: 3 elements do not divide into 2 equal parts");
        EXPECT_EQ(
            message_of<DtypeError>([&] { all_reduce(view_of(bytes), Reduce::kSum, world, kCpu); }),
            "all_reduce: elements of uint8 cannot be reduced; use a floating type, int64 or "
            "int32");
        EXPECT_EQ(message_of<InternalError>([&] { broadcast(view_of(x), 2, world, kCpu); }),
                  "broadcast: root 2 is not in group world of 2 ranks");
      },
      kOptions);
}

TEST(CollectivesTest, RanksShareTheCallersThreads) {
  const int threads = num_threads();
  for (const int size : kSizes) {
    run_ranks(
        size, [&](const Group&) { EXPECT_EQ(num_threads(), std::max(1, threads / size)); },
        kOptions);
  }
  EXPECT_EQ(num_threads(), threads);
}

}  // namespace
}  // namespace megatron::comm

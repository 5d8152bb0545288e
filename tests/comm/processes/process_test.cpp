#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cstring>
#include <memory>
#include <set>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "megatron/comm/collectives.h"
#include "megatron/comm/processes.h"
#include "megatron/comm/processes/process_group.h"
#include "megatron/comm/transport.h"
#include "megatron/comm/working.h"
#include "megatron/core/half.h"
#include "tests/comm/processes/run_tests.h"
#include "tests/comm/values.h"
#include "tests/support/captured_output.h"

// Every process runs the same tests, as one rank of the same world.
namespace megatron::comm {
namespace {

constexpr Stream kCpu{};

template <class T>
std::vector<T> ordered_sum(int size, int64_t count) {
  using Sum = std::conditional_t<sizeof(T) == 2, float, T>;
  std::vector<Sum> sums(static_cast<size_t>(count));
  for (int rank = 0; rank < size; ++rank) {
    const std::vector<T> x = values<T>(rank, count);
    for (size_t i = 0; i < x.size(); ++i) {
      sums[i] = rank == 0 ? static_cast<Sum>(x[i]) : sums[i] + static_cast<Sum>(x[i]);
    }
  }
  return {sums.begin(), sums.end()};
}

bool same_bits(ConstView a, ConstView b) {
  return a.bytes() == b.bytes() &&
         (a.bytes() == 0 || std::memcmp(a.data, b.data, static_cast<size_t>(a.bytes())) == 0);
}

template <class T>
class ProcessReductionTest : public testing::Test {};
using Reducible = testing::Types<float, double, Float16, BFloat16, int64_t, int32_t>;
TYPED_TEST_SUITE(ProcessReductionTest, Reducible);

// Sizes on both sides of where messages are cut: 16 KiB, 1 MiB for each rank.
TYPED_TEST(ProcessReductionTest, SumsInRankOrder) {
  const Group& world = *world_of_processes();
  const int size = world.size();
  for (const int64_t count : {0, 1, 7, 4099, 1100003}) {
    std::vector<TypeParam> x = values<TypeParam>(world.rank(), count);
    all_reduce(view_of(x), Reduce::kSum, world, kCpu);
    EXPECT_TRUE(same_bits(view_of(x), view_of(ordered_sum<TypeParam>(size, count)))) << count;
  }
  for (const int64_t count : {0, 1, 2003, 270001}) {
    std::vector<TypeParam> y = values<TypeParam>(world.rank(), size * count);
    std::vector<TypeParam> want = ordered_sum<TypeParam>(size, size * count);
    const TensorView own = part_of(y, world.rank(), size);
    reduce_scatter(own, view_of(y), Reduce::kSum, world, kCpu);
    EXPECT_TRUE(same_bits(own, part_of(want, world.rank(), size))) << count;
  }
}

TEST(ProcessTest, MovesParts) {
  const Group& world = *world_of_processes();
  const int size = world.size();
  for (const int64_t count : {1, 1000, 3000, 500001}) {
    std::vector<int16_t> all;
    for (int rank = 0; rank < size; ++rank) {
      const std::vector<int16_t> part = values<int16_t>(rank, count);
      all.insert(all.end(), part.begin(), part.end());
    }
    std::vector<int16_t> y(all.size());
    all_gather(view_of(y), view_of(values<int16_t>(world.rank(), count)), world, kCpu);
    EXPECT_EQ(y, all);

    std::vector<int16_t> transposed(all.size());
    all_to_all(view_of(transposed), view_of(values<int16_t>(world.rank(), size * count)), world,
               kCpu);
    for (int rank = 0; rank < size; ++rank) {
      std::vector<int16_t> theirs = values<int16_t>(rank, size * count);
      EXPECT_TRUE(same_bits(part_of(transposed, rank, size), part_of(theirs, world.rank(), size)));
    }
    for (int root = 0; root < size; ++root) {
      std::vector<int16_t> x = values<int16_t>(world.rank(), count);
      broadcast(view_of(x), root, world, kCpu);
      EXPECT_EQ(x, values<int16_t>(root, count));
    }
  }
}

TEST(ProcessTest, ASendDoesNotWait) {
  const Group& world = *world_of_processes();
  const int next = (world.rank() + 1) % world.size();
  const int previous = (world.rank() + world.size() - 1) % world.size();
  for (const int64_t count : {10, 1000000}) {
    for (uint64_t i = 0; i < 3; ++i) {
      send(view_of(values<float>(world.rank(), count, i)), next, world, kCpu);
    }
    barrier(world);  // overtakes the messages
    for (uint64_t i = 0; i < 3; ++i) {
      std::vector<float> x(static_cast<size_t>(count));
      recv(view_of(x), previous, world, kCpu);
      EXPECT_EQ(x, values<float>(previous, count, i));
    }
  }
}

TEST(ProcessTest, ExchangesWithBothNeighbours) {
  const Group& world = *world_of_processes();
  const int next = (world.rank() + 1) % world.size();
  const int previous = (world.rank() + world.size() - 1) % world.size();
  std::vector<double> x = values<double>(world.rank(), 9999);
  std::vector<double> y(9999);
  std::vector<double> z(9999);
  const std::array<Transfer, 4> transfers = {{{view_of(y), previous, false},
                                              {view_of(z), next, false},
                                              {view_of(x), next, true},
                                              {view_of(x), previous, true}}};
  for (int i = 0; i < 10; ++i) exchange(transfers, world, kCpu);
  EXPECT_EQ(y, values<double>(previous, 9999));
  EXPECT_EQ(z, values<double>(next, 9999));
}

TEST(ProcessTest, SubgroupsWorkAtOnce) {
  const Group& world = *world_of_processes();
  if (world.size() < 4) return;
  const int r = world.rank();
  const std::vector<int> pair = {r / 2 * 2, r / 2 * 2 + 1};
  const std::vector<int> across = {(r + 2) % 4, r};
  const Group tensor = world.subgroup("tensor", pair);
  const Group data = world.subgroup("data", r < 2 ? across : std::vector<int>{r, (r + 2) % 4});
  EXPECT_EQ(data.rank(), r < 2 ? 1 : 0);
  for (int64_t i = 0; i < 50; ++i) {
    std::vector<int64_t> x = {r};
    all_reduce(view_of(x), Reduce::kSum, tensor, kCpu);
    ASSERT_EQ(x[0], r / 2 * 4 + 1);
    std::vector<int64_t> y(5000, r + i);
    all_reduce(view_of(y), Reduce::kSum, data, kCpu);
    ASSERT_EQ(y[4999], 2 * (r % 2) + 2 + 2 * i);
  }
}

TEST(ProcessTest, EqualSubgroupsAreApart) {
  const Group& world = *world_of_processes();
  const std::vector<int> everybody(world.world_ranks().begin(), world.world_ranks().end());
  const Group first = world.subgroup("pipeline", everybody);
  const Group second = world.subgroup("pipeline", everybody);
  const int next = (world.rank() + 1) % world.size();
  const int previous = (world.rank() + world.size() - 1) % world.size();
  for (const size_t count : {size_t{1}, size_t{100000}}) {
    send(view_of(std::vector<int32_t>(count, 1)), next, first, kCpu);
    send(view_of(std::vector<int32_t>(count, 2)), next, second, kCpu);
    std::vector<int32_t> x(count);
    recv(view_of(x), previous, second, kCpu);
    EXPECT_EQ(x.back(), 2);
    recv(view_of(x), previous, first, kCpu);
    EXPECT_EQ(x.back(), 1);
  }
}

// A time-out measures silence, not work.
TEST(ProcessTest, OthersWaitForARankAtWork) {
  const Group& world = *world_of_processes();
  std::atomic<std::chrono::milliseconds>& timeout = world.transport().context().timeout;
  const std::chrono::milliseconds before = timeout;
  barrier(world);
  timeout = std::chrono::seconds(2);
  if (world.rank() == world.size() - 1) {
    const Working working(world, "saving iteration 40");
    const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(5);
    while (std::chrono::steady_clock::now() < end) std::this_thread::yield();
  }
  EXPECT_NO_THROW(barrier(world));
  timeout = before;
}

TEST(ProcessTest, HostsAreNamedWhereThereAreSeveral) {
  const Transport& transport = world_of_processes()->transport();
  const std::vector<std::string>& hosts = transport.context().hosts;
  if (hosts.empty()) {
    EXPECT_EQ(transport.name_of(1), "rank 1 (rank 1 of the world)");
    return;
  }
  ASSERT_EQ(hosts.size(), static_cast<size_t>(world_of_processes()->size()));
  std::array<char, 256> own{};
  ::gethostname(own.data(), own.size() - 1);
  EXPECT_EQ(hosts[static_cast<size_t>(world_of_processes()->rank())], own.data());
  EXPECT_GT(std::set<std::string>(hosts.begin(), hosts.end()).size(), 1u);
  EXPECT_EQ(transport.name_of(1), "rank 1 (rank 1 of the world) on " + hosts[1]);
}

std::unique_ptr<ProcessGroup> shared_group(const Group& group) {
  const bool is_one_host = group.transport().context().hosts.empty();
  ProcessGroup::Made made = ProcessGroup::make(group.transport(), 0);
  EXPECT_EQ(made.problem, is_one_host ? "" : "members are on several hosts");
  EXPECT_EQ(made.group != nullptr, is_one_host);
  return std::move(made.group);
}

TEST(ProcessTest, MeetsInSharedMemory) {
  const Group& world = *world_of_processes();
  const auto group = shared_group(world);
  if (group == nullptr) return;
  for (int round = 0; round < 300; ++round) {
    const std::array<int, 2> mine = {world.rank(), round};
    group->enter({Operation::kConnect}, std::as_bytes(std::span(mine)));
    for (int member = 0; member < world.size(); ++member) {
      std::array<int, 2> theirs{};
      std::memcpy(theirs.data(), group->part_of(member), sizeof(theirs));
      ASSERT_EQ(theirs, (std::array<int, 2>{member, round}));
    }
    group->leave();
  }
  const Call call{Operation::kAllReduce, DType::kFloat32, world.rank() == 1 ? 4 : 5};
  EXPECT_THROW(group->enter(call, {}), CommError);
  group->enter({Operation::kConnect}, {});
  group->leave();
}

TEST(ProcessTest, OthersWaitInSharedMemoryForARankAtWork) {
  const Group& world = *world_of_processes();
  const auto group = shared_group(world);
  if (group == nullptr) return;
  std::atomic<std::chrono::milliseconds>& timeout = world.transport().context().timeout;
  const std::chrono::milliseconds before = timeout;
  barrier(world);
  timeout = std::chrono::seconds(1);
  const bool works = world.rank() == world.size() - 1;
  CapturedStderr captured_err;
  if (works) {
    const Working working(world, "saving iteration 40");
    const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(3);
    while (std::chrono::steady_clock::now() < end) std::this_thread::yield();
  }
  group->enter({Operation::kConnect}, {});
  group->leave();
  const std::string text = captured_err.text();
  EXPECT_EQ(text.find("waiting beyond the time-out of 1 s: rank ") != std::string::npos, !works);
  timeout = before;
  barrier(world);
}

// Every rank sends to the next one.
TEST(ProcessTest, PassesMessagesInSharedMemory) {
  const Group& world = *world_of_processes();
  const auto group = shared_group(world);
  if (group == nullptr) return;
  const int next = (world.rank() + 1) % world.size();
  const int previous = (world.rank() + world.size() - 1) % world.size();
  for (int i = 0; i < 500; ++i) {
    const std::array<int, 2> sent = {world.rank(), i};
    group->post({Operation::kSend, DType::kInt32, 2, Reduce::kSum, next},
                std::as_bytes(std::span(sent)));
    std::array<int, 2> got{};
    group->receive({Operation::kRecv, DType::kInt32, 2, Reduce::kSum, previous},
                   std::as_writable_bytes(std::span(got)));
    group->take(previous);
    ASSERT_EQ(got, (std::array<int, 2>{previous, i}));
  }
}

}  // namespace
}  // namespace megatron::comm

int main(int argc, char** argv) { return megatron::comm::run_tests_of_rank(argc, argv); }

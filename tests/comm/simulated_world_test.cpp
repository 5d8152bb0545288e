#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <functional>
#include <thread>
#include <vector>

#include "megatron/comm/collectives.h"
#include "megatron/comm/messages/message_transport.h"
#include "megatron/comm/threads.h"
#include "megatron/core/error.h"
#include "megatron/core/half.h"
#include "tests/comm/simulated_wire.h"
#include "tests/comm/values.h"
#include "tests/support/message_of.h"
#include "tests/support/sanitizers.h"

// Collectives made of messages, among processes that are threads of this test.
namespace megatron::comm {
namespace {

using testing::HasSubstr;

constexpr Stream kSimulatedWorldCpu{};
constexpr auto kTimeout = std::chrono::seconds(30);

// f on `size` processes that speak directly in groups of at most `direct`; what they sent.
std::vector<MessageRouter::Traffic> simulate(int size, int direct,
                                             const std::function<void(const Group& world)>& f) {
  SimulatedNet net(size);
  std::vector<MessageRouter::Traffic> traffic(static_cast<size_t>(size));
  std::vector<std::thread> threads;
  for (int rank = 0; rank < size; ++rank) {
    threads.emplace_back([&, rank] {
      const auto context = std::make_shared<RankContext>();
      context->timeout = kTimeout;
      const auto router =
          std::make_shared<MessageRouter>(std::make_unique<SimulatedWire>(net, rank), context,
                                          MessageRouter::ProgressThread::kNone);
      Membership everybody{.name = "world", .rank = rank, .world_ranks = {}};
      for (int i = 0; i < size; ++i) everybody.world_ranks.push_back(i);
      f(Group(std::make_shared<MessageTransport>(router, std::move(everybody), direct)));
      traffic[static_cast<size_t>(rank)] = router->traffic();
    });
  }
  for (std::thread& thread : threads) thread.join();
  return traffic;
}

template <class T>
void append(std::vector<std::byte>& to, const std::vector<T>& values) {
  const auto* const bytes = reinterpret_cast<const std::byte*>(values.data());
  to.insert(to.end(), bytes, bytes + values.size() * sizeof(T));
}

// The bytes that one rank has after every collective.
template <class T>
std::vector<std::byte> results(const Group& world) {
  const int size = world.size();
  std::vector<std::byte> all;
  for (const int64_t count : {0, 1, 5, 4099, 300'007}) {
    for (const Reduce op : {Reduce::kSum, Reduce::kMax}) {
      std::vector<T> x = values<T>(world.rank(), count);
      all_reduce(view_of(x), op, world, kSimulatedWorldCpu);
      append(all, x);
    }
  }
  for (const int64_t count : {0, 1, 5, 70'001}) {
    std::vector<T> x = values<T>(world.rank(), size * count);
    std::vector<T> y(static_cast<size_t>(count));
    reduce_scatter(view_of(y), view_of(x), Reduce::kSum, world, kSimulatedWorldCpu);
    append(all, y);
    const TensorView own = part_of(x, world.rank(), size);  // in place
    reduce_scatter(own, view_of(x), Reduce::kSum, world, kSimulatedWorldCpu);
    EXPECT_TRUE(count == 0 || std::memcmp(own.data, y.data(), y.size() * sizeof(T)) == 0);
  }
  for (const int64_t count : {1, 5, 90'001}) {
    std::vector<T> y(static_cast<size_t>(size * count));
    all_gather(view_of(y), view_of(values<T>(world.rank(), count)), world, kSimulatedWorldCpu);
    append(all, y);
    all_to_all(view_of(y), view_of(values<T>(world.rank(), size * count)), world,
               kSimulatedWorldCpu);
    append(all, y);
    for (const int root : {0, size / 2, size - 1}) {
      std::vector<T> x = values<T>(world.rank(), 4 * count);
      broadcast(view_of(x), root, world, kSimulatedWorldCpu);
      append(all, x);
    }
    barrier(world);
  }
  return all;
}

template <class T>
class SimulatedSumTest : public testing::Test {};
// The thread sanitizer makes the larger ones take minutes, and sees the same threads in few.
#if MG_THREAD_SANITIZER
using SimulatedWorldReducible = testing::Types<float>;
constexpr int kWorldSizes[] = {2, 9};
#else
using SimulatedWorldReducible = testing::Types<float, BFloat16, double>;
constexpr int kWorldSizes[] = {2, 3, 5, 8, 13};
#endif
TYPED_TEST_SUITE(SimulatedSumTest, SimulatedWorldReducible);

// By tree, chain and ring as between every two, and as threads do it.
TYPED_TEST(SimulatedSumTest, EveryWayHasTheBitsOfThreads) {
  for (const int size : kWorldSizes) {
    std::vector<std::vector<std::byte>> want(static_cast<size_t>(size));
    run_ranks(size, [&](const Group& world) {
      want[static_cast<size_t>(world.rank())] = results<TypeParam>(world);
    });
    for (const int direct : {0, 64}) {
      simulate(size, direct, [&](const Group& world) {
        EXPECT_TRUE(results<TypeParam>(world) == want[static_cast<size_t>(world.rank())])
            << size << " ranks, direct up to " << direct << ", rank " << world.rank();
      });
    }
  }
}

TEST(SimulatedWorldTest, ALargeGroupSpeaksToFew) {
  constexpr int kSize = 64;
  const std::vector<MessageRouter::Traffic> traffic =
      simulate(kSize, MessageTransport::kDirect, [](const Group& world) {
        std::vector<float> x(100'000, 1);
        all_reduce(view_of(x), Reduce::kSum, world, kSimulatedWorldCpu);
        x.resize(10);
        all_reduce(view_of(x), Reduce::kSum, world, kSimulatedWorldCpu);
        barrier(world);
      });
  int64_t messages = 0;
  for (const MessageRouter::Traffic& rank : traffic) {
    EXPECT_LE(rank.peers, 8);  // two neighbours and up to six of the tree
    messages += rank.messages;
  }
  EXPECT_LE(messages, 2 * (kSize - 1) * 4);  // each call goes up and down; two windows
}

// A message that says less or more than it brings touches no memory beyond what was asked for.
TEST(SimulatedWorldTest, ALyingHeaderIsRefused) {
  SimulatedNet net(2);
  const auto receive = [&](Header header, size_t bytes) {
    const auto context = std::make_shared<RankContext>();
    context->timeout = std::chrono::milliseconds(1500);
    const auto router = std::make_shared<MessageRouter>(
        std::make_unique<SimulatedWire>(net, 0), context, MessageRouter::ProgressThread::kNone);
    const auto transport = std::make_shared<MessageTransport>(
        router, Membership{.name = "world", .rank = 0, .world_ranks = {0, 1}});
    SimulatedNet other(2);
    const auto theirs = std::make_shared<MessageRouter>(std::make_unique<SimulatedWire>(other, 1),
                                                        std::make_shared<RankContext>(),
                                                        MessageRouter::ProgressThread::kNone);
    const auto sender = std::make_shared<MessageTransport>(
        theirs, Membership{.name = "world", .rank = 1, .world_ranks = {0, 1}});
    send(view_of(std::vector<float>(4)), 0, Group(sender),
         kSimulatedWorldCpu);  // tells the group's number
    header.group = other.box(0).from[1].front().header.group;
    net.deliver(1, 0, {header, std::vector<std::byte>(bytes)});
    std::vector<float> x(4);
    return message_of<CommError>(
        [&] { recv(view_of(x), 1, Group(transport), kSimulatedWorldCpu); });
  };
  const Call call{Operation::kSend, DType::kFloat32, 4, Reduce::kSum, 0};
  for (const int64_t bytes : {int64_t{1024}, int64_t{0}, int64_t{8}, int64_t{-1}, INT64_MAX}) {
    EXPECT_THAT(receive({0, call, bytes}, 1024), HasSubstr("rank 1 of the world sent an invalid "
                                                           "message"));
  }
  Call other = call;
  other.count = 256;
  EXPECT_THAT(receive({0, other, 1024}, 1024), HasSubstr("expects a message that rank 1"));
  other = call;
  other.operation = static_cast<Operation>(77);
  EXPECT_THAT(receive({0, other, 16}, 16), HasSubstr("sent an invalid message"));
  other = call;
  other.dtype = static_cast<DType>(-3);
  EXPECT_THAT(receive({0, other, 16}, 16), HasSubstr("sent an invalid message"));
}

}  // namespace
}  // namespace megatron::comm

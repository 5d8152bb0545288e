#include <fmt/format.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <fstream>
#include <memory>
#include <thread>
#include <vector>

#include "megatron/comm/collectives.h"
#include "megatron/comm/messages/message_transport.h"
#include "megatron/comm/tcp/rendezvous.h"
#include "tests/comm/simulated_wire.h"
#include "tests/comm/values.h"

// 4,096 ranks: what a process holds for its communication, without tensors; each rank is a thread.
namespace megatron::comm {
namespace {

constexpr Stream kScaleCpu{};
constexpr int kSize = 4096;
constexpr int kTensor = 8;
constexpr int kPipeline = 16;
constexpr int kData = kSize / kTensor / kPipeline;

int64_t resident_bytes() {
  std::ifstream file("/proc/self/statm");
  int64_t total = 0;
  int64_t resident = 0;
  file >> total >> resident;
  return resident * ::sysconf(_SC_PAGESIZE);
}

// Starts a rank for each number and waits for all.
template <class F>
void as_ranks(const F& f) {
  std::vector<std::thread> threads;
  threads.reserve(kSize);
  for (int rank = 0; rank < kSize; ++rank) threads.emplace_back([&f, rank] { f(rank); });
  for (std::thread& thread : threads) thread.join();
}

struct Rank {
  std::shared_ptr<MessageRouter> router;
  Group world, tensor, pipeline, data;
};

Rank rank_of(SimulatedNet& net, int number) {
  const auto context = std::make_shared<RankContext>();
  Rank rank;
  rank.router = std::make_shared<MessageRouter>(
      std::make_unique<SimulatedWire>(net, number, std::chrono::seconds(30)), context,
      MessageRouter::ProgressThread::kNone);
  Membership everybody{.name = "world", .rank = number, .world_ranks = {}};
  for (int i = 0; i < kSize; ++i) everybody.world_ranks.push_back(i);
  rank.world = Group(std::make_shared<MessageTransport>(rank.router, std::move(everybody)));
  const auto group = [&](const char* name, int size, int stride) {
    const int first = number - number / stride % size * stride;
    std::vector<int> ranks;
    for (int i = 0; i < size; ++i) ranks.push_back(first + i * stride);
    return rank.world.subgroup(name, ranks);
  };
  rank.tensor = group("tensor", kTensor, 1);
  rank.data = group("data", kData, kTensor);
  rank.pipeline = group("pipeline", kPipeline, kTensor * kData);
  return rank;
}

// The collectives of a step: layers' sums, the pipeline's messages, gradients, norm, loss, signal.
void step(const Rank& rank) {
  std::vector<float> activations(1024, 1);
  const int stage = rank.pipeline.rank();
  for (int microbatch = 0; microbatch < 2; ++microbatch) {
    if (stage > 0) recv(view_of(activations), stage - 1, rank.pipeline, kScaleCpu);
    for (int layer = 0; layer < 2; ++layer) {
      std::fill(activations.begin(), activations.end(), 1.0f);
      all_reduce(view_of(activations), Reduce::kSum, rank.tensor, kScaleCpu);
    }
    EXPECT_EQ(activations[7], kTensor);
    if (stage + 1 < kPipeline) send(view_of(activations), stage + 1, rank.pipeline, kScaleCpu);
  }
  std::vector<float> gradients(kData * 256, 1);
  std::vector<float> part(256);
  reduce_scatter(view_of(part), view_of(gradients), Reduce::kSum, rank.data, kScaleCpu);
  all_gather(view_of(gradients), view_of(part), rank.data, kScaleCpu);
  EXPECT_EQ(gradients[5000], kData);
  for (int i = 0; i < 3; ++i) {  // norm, loss, signal
    std::vector<float> number = {1};
    all_reduce(view_of(number), Reduce::kSum, rank.world, kScaleCpu);
    EXPECT_EQ(number[0], kSize);
  }
}

TEST(ScaleTest, ATrainingStepOf4096Ranks) {
  SimulatedNet net(kSize);
  const int64_t before = resident_bytes();
  std::vector<MessageRouter::Traffic> traffic(kSize);
  std::atomic<int64_t> during{0};
  const auto begin = std::chrono::steady_clock::now();
  as_ranks([&](int number) {
    const Rank rank = rank_of(net, number);
    barrier(rank.world);
    step(rank);
    if (number == 0) during = resident_bytes();
    barrier(rank.world);
    traffic[static_cast<size_t>(number)] = rank.router->traffic();
  });
  const double seconds =
      std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  int64_t messages = 0;
  int64_t most = 0;
  int64_t peers = 0;
  for (const MessageRouter::Traffic& rank : traffic) {
    messages += rank.messages;
    most = std::max(most, rank.messages);
    peers = std::max(peers, rank.peers);
  }
  fmt::print(
      "{} ranks: {} kB a rank, {} messages a step and rank (at most {}), at most {} peers, "
      "{:.1f} s\n",
      kSize, (during - before) / kSize / 1024, messages / kSize, most, peers, seconds);
  EXPECT_LT((during - before) / kSize, 1 << 20);
  EXPECT_LT(messages / kSize, 400);
  EXPECT_LT(peers, 48);
}

TEST(ScaleTest, AMeetingOf4096Ranks) {
  rlimit files{};
  ASSERT_EQ(::getrlimit(RLIMIT_NOFILE, &files), 0);
  files.rlim_cur = files.rlim_max;
  ::setrlimit(RLIMIT_NOFILE, &files);
  // Both ends of each connection are in this process.
  if (files.rlim_max < 2 * kSize + 256) {
    GTEST_SKIP() << "the limit of open files is " << files.rlim_max << ": not run";
  }
  const Secret secret("a secret of thirty-two characters");
  const int port = [] {
    const tcp::Address loopback = tcp::numeric_address("127.0.0.1", 0);
    return ntohs(tcp::own_address(tcp::listen_at(loopback, 1).get()).port());
  }();
  const auto begin = std::chrono::steady_clock::now();
  std::atomic<int> num_met{0};
  as_ranks([&](int number) {
    const tcp::Rendezvous rendezvous =
        tcp::join_rendezvous({.address = "127.0.0.1", .port = port, .count = kSize},
                             {.number = number,
                              .name = fmt::format("rank {}", number),
                              .settings = {},
                              .card = std::to_string(number),
                              .address = {}},
                             secret, std::chrono::minutes(2));
    EXPECT_EQ(rendezvous.members.back().card, std::to_string(kSize - 1));
    ++num_met;
    while (num_met < kSize) std::this_thread::sleep_for(std::chrono::milliseconds(20));
  });
  fmt::print("{} ranks met in {:.1f} s\n", kSize,
             std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count());
}

}  // namespace
}  // namespace megatron::comm

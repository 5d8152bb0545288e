#include "megatron/comm/tcp/tcp_wire.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <filesystem>
#include <fstream>
#include <functional>
#include <set>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#include "megatron/comm/collectives.h"
#include "megatron/comm/messages/message_transport.h"
#include "megatron/comm/tcp/sockets.h"
#include "megatron/comm/working.h"
#include "tests/comm/values.h"
#include "tests/support/captured_output.h"
#include "tests/support/message_of.h"

// Ranks that speak over TCP, here each a thread.
namespace megatron::comm::tcp {
namespace {

using namespace std::chrono_literals;
using testing::HasSubstr;

constexpr Stream kTcpWireCpu{};
const Secret kTcpWireSecret("a secret of thirty-two characters");

int tcp_wire_free_port() {
  return ntohs(own_address(listen_at(numeric_address("127.0.0.1", 0), 1).get()).port());
}

void run_over_tcp(int size, std::chrono::milliseconds timeout,
                  const std::function<void(const Group& world, MessageRouter& router)>& f) {
  const int port = tcp_wire_free_port();
  std::vector<std::thread> threads;
  for (int rank = 0; rank < size; ++rank) {
    threads.emplace_back([&, rank] {
      const LaunchEnvironment place{.launcher = LaunchEnvironment::Launcher::kTcp,
                                    .rank = rank,
                                    .size = size,
                                    .local_rank = rank,
                                    .local_size = size,
                                    .master_address = "127.0.0.1",
                                    .master_port = port};
      const auto context = std::make_shared<RankContext>();
      context->timeout = timeout;
      const auto router =
          std::make_shared<MessageRouter>(make_tcp_wire(place, kTcpWireSecret, 20s), context);
      Membership everybody{.name = "world", .rank = rank, .world_ranks = {}};
      for (int i = 0; i < size; ++i) everybody.world_ranks.push_back(i);
      f(Group(std::make_shared<MessageTransport>(router, std::move(everybody), 2)), *router);
      router->close();
    });
  }
  for (std::thread& thread : threads) thread.join();
}

// The sockets of this process.
std::set<std::string> own_sockets() {
  std::set<std::string> inodes;
  std::error_code ignored;
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) {
    const std::string link = std::filesystem::read_symlink(entry.path(), ignored).string();
    if (link.starts_with("socket:[")) inodes.insert(link.substr(8, link.size() - 9));
  }
  return inodes;
}

// The addresses at which this process listens, as /proc/net/tcp writes them.
std::vector<std::string> listening_addresses() {
  const std::set<std::string> own = own_sockets();
  std::vector<std::string> addresses;
  for (const char* const table : {"/proc/net/tcp", "/proc/net/tcp6"}) {
    std::ifstream file(table);
    for (std::string line; std::getline(file, line);) {
      std::istringstream words(line);
      std::vector<std::string> word(10);
      for (std::string& each : word) words >> each;
      constexpr const char* kListen = "0A";
      if (word[3] == kListen && own.contains(word[9])) {
        addresses.push_back(word[1].substr(0, word[1].find(':')));
      }
    }
  }
  return addresses;
}

TEST(TcpWireTest, NothingListensBeyondTheAddressAskedFor) {
  run_over_tcp(3, 20s, [](const Group& world, MessageRouter&) {
    barrier(world);
    if (world.rank() == 0) {
      const std::vector<std::string> addresses = listening_addresses();
      EXPECT_GE(addresses.size(), 3u);
      EXPECT_THAT(addresses, testing::Each("0100007F"));  // 127.0.0.1
    }
    barrier(world);
  });
}

TEST(TcpWireTest, ConnectsToThoseItSpeaksWith) {
  run_over_tcp(6, 20s, [](const Group& world, MessageRouter& router) {
    EXPECT_EQ(router.traffic().peers, 0);
    const int other = world.rank() ^ 1;
    // Both call each other at once.
    std::vector<float> x = values<float>(world.rank(), 5000);
    std::vector<float> y(5000);
    const std::array<Transfer, 2> both = {{{view_of(x), other, true}, {view_of(y), other, false}}};
    exchange(both, world, kTcpWireCpu);
    EXPECT_EQ(y, values<float>(other, 5000));
    EXPECT_EQ(router.traffic().peers, 1);
    for (int i = 0; i < 20; ++i) barrier(world);
    std::vector<float> z(3'000'000 + 5, static_cast<float>(world.rank()));
    all_reduce(view_of(z), Reduce::kSum, world, kTcpWireCpu);
    EXPECT_EQ(z.back(), 15);
    EXPECT_LE(router.traffic().peers, 5);
  });
}

// A large message leaves while its sender is busy elsewhere.
TEST(TcpWireTest, SendsGoOnInTheBackground) {
  std::atomic<bool> is_received{false};
  run_over_tcp(2, 20s, [&](const Group& world, MessageRouter&) {
    std::vector<float> x(20'000'000, 3);
    if (world.rank() == 0) {
      send(view_of(x), 1, world, kTcpWireCpu);
      while (!is_received) std::this_thread::yield();  // no call
    } else {
      x.assign(x.size(), 0);
      recv(view_of(x), 0, world, kTcpWireCpu);
      EXPECT_EQ(x.back(), 3);
      is_received = true;
    }
    barrier(world);
  });
}

TEST(TcpWireTest, OthersWaitForARankAtWork) {
  CapturedStderr captured_err;
  run_over_tcp(4, 1s, [](const Group& world, MessageRouter&) {
    barrier(world);
    if (world.rank() == 2) {
      const Working working(world, "saving iteration 40");
      const auto end = std::chrono::steady_clock::now() + 2s;
      while (std::chrono::steady_clock::now() < end) std::this_thread::yield();
    }
    barrier(world);
  });
  EXPECT_THAT(captured_err.text(),
              HasSubstr("waiting beyond the time-out of 1 s: rank 2 of the world is saving "
                        "iteration 40"));
}

}  // namespace
}  // namespace megatron::comm::tcp

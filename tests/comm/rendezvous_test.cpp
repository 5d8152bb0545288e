#include "megatron/comm/tcp/rendezvous.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <thread>
#include <vector>

#include "megatron/core/error.h"
#include "tests/support/message_of.h"

// Processes that meet over TCP, here each a thread.
namespace megatron::comm::tcp {
namespace {

using namespace std::chrono_literals;
using testing::AllOf;
using testing::HasSubstr;
using testing::StartsWith;

int free_port() { return ntohs(own_address(listen_at(0, 1).get()).port()); }

LaunchEnvironment place_of(int rank, int size, int port, const std::string& master = "127.0.0.1") {
  return {.launcher = LaunchEnvironment::Launcher::kTcp,
          .rank = rank,
          .size = size,
          .local_rank = rank,
          .local_size = size,
          .master_address = master,
          .master_port = port};
}

// What each of these places has thrown; empty where all went well, and every pair is connected.
std::vector<std::string> meet(const std::vector<LaunchEnvironment>& places,
                              std::chrono::milliseconds timeout = 20s) {
  std::vector<std::string> errors(places.size());
  std::vector<std::thread> threads;
  for (size_t i = 0; i < places.size(); ++i) {
    threads.emplace_back([&, i] {
      try {
        const std::vector<Socket> sockets = connect_all(places[i], timeout);
        for (int peer = 0; peer < places[i].size; ++peer) {
          if (peer == places[i].rank) continue;
          ASSERT_TRUE(write_all(sockets[static_cast<size_t>(peer)].get(), &places[i].rank,
                                sizeof(int), Deadline(timeout)));
        }
        for (int peer = 0; peer < places[i].size; ++peer) {
          int said = peer;
          if (peer != places[i].rank) {
            ASSERT_TRUE(read_all(sockets[static_cast<size_t>(peer)].get(), &said, sizeof(int),
                                 Deadline(timeout)));
          }
          EXPECT_EQ(said, peer);
        }
      } catch (const ConfigError& error) {
        errors[i] = std::string("ConfigError: ") + error.what();
      } catch (const CommError& error) {
        errors[i] = std::string("CommError: ") + error.what();
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  return errors;
}

std::vector<LaunchEnvironment> places(int size, const std::string& master = "127.0.0.1") {
  const int port = free_port();
  std::vector<LaunchEnvironment> list;
  for (int rank = 0; rank < size; ++rank) list.push_back(place_of(rank, size, port, master));
  return list;
}

TEST(RendezvousTest, ConnectsEveryPair) {
  for (const int size : {2, 5, 24}) {
    EXPECT_EQ(meet(places(size)), std::vector<std::string>(static_cast<size_t>(size)));
  }
}

TEST(RendezvousTest, NamesAndIPv6) {
  EXPECT_EQ(meet(places(3, "localhost")), std::vector<std::string>(3));
  if (!resolve("::1", 1)[0].is_own()) GTEST_SKIP() << "this host has no IPv6: not run";
  EXPECT_EQ(meet(places(3, "::1")), std::vector<std::string>(3));
}

TEST(RendezvousTest, StrangersAreLeftAlone) {
  const std::vector<LaunchEnvironment> all = places(3);
  std::vector<std::string> first;
  std::thread waiting([&] { first = meet({all[0]}); });
  const std::vector<Address> door = resolve("127.0.0.1", all[0].master_port);
  std::vector<Socket> strangers;
  for (const Deadline deadline(10s); strangers.size() < 4 && !deadline.is_over();) {
    Socket socket = connect_once(door, deadline);
    if (socket.is_open()) strangers.push_back(std::move(socket));
  }
  ASSERT_EQ(strangers.size(), 4u);
  // The first two say nothing.
  const std::string garbage(3000, 'x');
  write_all(strangers[2].get(), garbage.data(), garbage.size(), Deadline(1s));
  write_all(strangers[3].get(), "GET", 3, Deadline(1s));
  strangers.pop_back();  // and leaves
  EXPECT_EQ(meet({all[1], all[2]}), std::vector<std::string>(2));
  waiting.join();
  EXPECT_EQ(first, std::vector<std::string>(1));
}

TEST(RendezvousTest, DifferentNumbersOfRanksAreNamed) {
  const int port = free_port();
  const std::vector<std::string> errors = meet(
      {place_of(0, 4, port), place_of(1, 4, port), place_of(1, 3, port), place_of(2, 3, port)});
  EXPECT_THAT(errors[0], AllOf(StartsWith("ConfigError: "), HasSubstr("rank 1 on "),
                               HasSubstr(" is one of 3 ranks, rank 0 on "),
                               HasSubstr(" of 4; start all with the same number of ranks")));
  for (const size_t rank : {1u, 2u, 3u}) {
    EXPECT_THAT(errors[rank],
                AllOf(StartsWith("CommError: "), HasSubstr(" was refused by rank 0: "),
                      HasSubstr("is one of 3 ranks")));
  }
}

TEST(RendezvousTest, TwoOfOneRankAreNamed) {
  const int port = free_port();
  for (const int twice : {0, 1}) {
    // The other rank 0 finds the port taken.
    const std::vector<std::string> errors =
        meet({place_of(0, 3, port), place_of(1, 3, port), place_of(twice, 3, port)}, 500ms);
    if (twice == 0) {
      EXPECT_THAT(errors[0] + errors[2], AllOf(HasSubstr("port " + std::to_string(port)),
                                               HasSubstr("Address already in use"),
                                               HasSubstr("choose another MASTER_PORT")));
    } else {
      EXPECT_THAT(errors[0], AllOf(StartsWith("ConfigError: there are two of rank 1, on "),
                                   HasSubstr("give each process its own RANK")));
    }
  }
}

TEST(RendezvousTest, WhoIsMissingIsNamed) {
  const int port = free_port();
  EXPECT_THAT(meet({place_of(0, 12, port), place_of(2, 12, port)}, 200ms)[0],
              AllOf(StartsWith("CommError: rank 0 of the world waited in vain at port "),
                    HasSubstr("for these ranks to connect: 1, 3, 4, 5, 6, 7, 8, 9, and 2 more; ")));
  EXPECT_THAT(meet({place_of(1, 2, port)}, 100ms)[0],
              AllOf(StartsWith("CommError: rank 1 on "),
                    HasSubstr(" cannot connect to rank 0 at 127.0.0.1:" + std::to_string(port)),
                    HasSubstr("Connection refused"), HasSubstr("was rank 0 started")));
  EXPECT_THAT(message_of<CommError>(
                  [&] { connect_all(place_of(1, 2, port, "no.such.host.invalid"), 100ms); }),
              AllOf(HasSubstr("no.such.host.invalid is not known"), HasSubstr("MASTER_ADDR")));
}

}  // namespace
}  // namespace megatron::comm::tcp

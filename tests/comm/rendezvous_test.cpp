#include "megatron/comm/tcp/rendezvous.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <poll.h>

#include <atomic>
#include <string>
#include <thread>
#include <vector>

#include "megatron/core/error.h"
#include "tests/support/captured_output.h"
#include "tests/support/message_of.h"

// Processes that meet over TCP, here each a thread.
namespace megatron::comm::tcp {
namespace {

using namespace std::chrono_literals;
using testing::AllOf;
using testing::Each;
using testing::HasSubstr;
using testing::Not;
using testing::StartsWith;

const Secret kMeetingSecret("a secret of thirty-two characters");

int free_port() {
  return ntohs(own_address(listen_at(numeric_address("127.0.0.1", 0), 1).get()).port());
}

struct Guest {
  RendezvousPoint place;
  Member member;
  Secret secret = kMeetingSecret;
};

Guest guest_of(int number, int count, int port, const std::string& master = "127.0.0.1") {
  return {{.purpose = Purpose::kRanks, .address = master, .port = port, .count = count},
          {.number = number,
           .name = "rank " + std::to_string(number) + " on here",
           .settings = {},
           .card = "card " + std::to_string(number),
           .address = {}}};
}

// The errors of these members; empty for those that succeeded and know all others.
std::vector<std::string> meet_all(const std::vector<Guest>& guests,
                                  std::chrono::milliseconds timeout = 20s) {
  std::vector<std::string> errors(guests.size());
  std::vector<std::thread> threads;
  for (size_t i = 0; i < guests.size(); ++i) {
    threads.emplace_back([&, i] {
      const Guest& guest = guests[i];
      try {
        const Rendezvous rendezvous =
            join_rendezvous(guest.place, guest.member, guest.secret, timeout);
        ASSERT_EQ(static_cast<int64_t>(rendezvous.members.size()), guest.place.count);
        for (const Member& member : rendezvous.members) {
          EXPECT_EQ(member.card, "card " + std::to_string(member.number));
        }
        EXPECT_EQ(rendezvous.channels.size(),
                  guest.member.number == 0 ? rendezvous.members.size() - 1 : 1u);
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

std::vector<Guest> guests(int count, const std::string& master = "127.0.0.1") {
  const int port = free_port();
  std::vector<Guest> list;
  for (int number = 0; number < count; ++number) {
    list.push_back(guest_of(number, count, port, master));
  }
  return list;
}

TEST(RendezvousTest, AllLearnOfAll) {
  for (const int count : {2, 5, 24}) {
    EXPECT_EQ(meet_all(guests(count)), std::vector<std::string>(static_cast<size_t>(count)));
  }
}

TEST(RendezvousTest, NamesAndIPv6) {
  EXPECT_EQ(meet_all(guests(3, "localhost")), std::vector<std::string>(3));
  if (!resolve("::1", 1)[0].is_own()) GTEST_SKIP() << "this host has no IPv6: not run";
  EXPECT_EQ(meet_all(guests(3, "::1")), std::vector<std::string>(3));
}

// Foreign connections: silent ones, other protocols, wrong secrets, disconnects.
TEST(RendezvousTest, StrangersChangeNothing) {
  CapturedStderr captured_err;
  const std::vector<Guest> all = guests(3);
  std::vector<std::string> first;
  std::thread waiting([&] { first = meet_all({all[0]}); });
  const std::vector<Address> door = resolve("127.0.0.1", all[0].place.port);
  std::vector<Socket> strangers;
  for (const Deadline deadline(10s); strangers.size() < 300 && !deadline.is_over();) {
    Socket socket = connect_once(door, deadline);
    if (socket.is_open()) strangers.push_back(std::move(socket));
  }
  ASSERT_EQ(strangers.size(), 300u);
  for (size_t i = 0; i < strangers.size(); ++i) {
    const std::string said[] = {"", std::string(3000, 'x'), "GET \x1b[31m / HTTP/1.1\r\n", "mega",
                                "{\"kind\":1}\n"};
    const std::string& text = said[i % std::size(said)];
    write_all(strangers[i].get(), text.data(), text.size(), Deadline(1s));
  }
  Guest without = all[1];
  without.secret = Secret("this is not the secret of the job");
  const std::string error = meet_all({without})[0];
  EXPECT_THAT(error, AllOf(StartsWith("CommError: "), HasSubstr("another secret"),
                           HasSubstr("MEGATRON_SECRET")));
  EXPECT_EQ(meet_all({all[1], all[2]}), std::vector<std::string>(2));
  waiting.join();
  EXPECT_EQ(first, std::vector<std::string>(1));
  const std::string log = captured_err.text();
  EXPECT_EQ(log.find("was dropped"), log.rfind("was dropped")) << log;
  EXPECT_THAT(log, AllOf(HasSubstr("a connection from 127.0.0.1:"), Not(HasSubstr("\x1b"))));
}

// A foreign program at the port is named within seconds, not after the time-out.
TEST(RendezvousTest, AServerOfAnotherKindIsNamed) {
  const Socket server = listen_at(numeric_address("127.0.0.1", 0), 5);
  const int port = ntohs(own_address(server.get()).port());
  std::atomic<bool> is_over{false};
  std::thread serving([&] {
    std::vector<Socket> customers;
    while (!is_over) {
      pollfd request{server.get(), POLLIN, 0};
      ::poll(&request, 1, 10);
      Socket socket = accept_at(server.get());
      if (!socket.is_open()) continue;
      const std::string text = "HTTP/1.1 400 Bad Request\r\n\r\n";
      write_all(socket.get(), text.data(), text.size(), Deadline(1s));
      customers.push_back(std::move(socket));
    }
  });
  const auto begin = std::chrono::steady_clock::now();
  const std::string error = meet_all({guest_of(1, 2, port)}, 600s)[0];
  EXPECT_LT(std::chrono::steady_clock::now() - begin, 10s);
  EXPECT_THAT(error, AllOf(HasSubstr("CommError: rank 1 on here cannot connect to rank 0 at "
                                     "127.0.0.1:" +
                                     std::to_string(port)),
                           HasSubstr("it sent \"HTTP/1.1 400 Bad Request"),
                           HasSubstr("choose another --master-port")));
  is_over = true;
  serving.join();
  // Rank 0 finds the port taken.
  EXPECT_THAT(meet_all({guest_of(0, 2, port)}, 600s)[0],
              AllOf(HasSubstr("port " + std::to_string(port)), HasSubstr("already in use")));
}

TEST(RendezvousTest, WhatDiffersIsNamedOnAll) {
  const int port = free_port();
  const std::vector<std::string> errors =
      meet_all({guest_of(0, 4, port), guest_of(1, 4, port), guest_of(2, 3, port)});
  EXPECT_THAT(errors,
              Each(HasSubstr("ConfigError: the number of ranks is 4 on rank 0 on here, 3 on "
                             "rank 2 on here; give all ranks the same")));
  std::vector<Guest> differ = guests(2);
  differ[0].member.settings = {{"--max-restarts", "1"}};
  differ[1].member.settings = {{"--max-restarts", "2"}};
  EXPECT_THAT(meet_all(differ), Each(HasSubstr("--max-restarts is 1 on rank 0 on here, 2 on rank 1 "
                                               "on here; give all ranks the same")));
}

TEST(RendezvousTest, TwoOfOneNumberAreNamed) {
  const int port = free_port();
  EXPECT_THAT(meet_all({guest_of(0, 3, port), guest_of(1, 3, port), guest_of(1, 3, port)}),
              Each(HasSubstr("ConfigError: two processes are rank 1: rank 1 on here and rank 1 on "
                             "here; give each process its own RANK")));
  // The other rank 0 of the same host finds the port taken.
  const std::vector<std::string> errors =
      meet_all({guest_of(0, 2, port), guest_of(0, 2, port)}, 2s);
  EXPECT_THAT(errors[0] + errors[1],
              AllOf(HasSubstr("port " + std::to_string(port)), HasSubstr("Address already in use"),
                    HasSubstr("choose another MASTER_PORT")));
}

TEST(RendezvousTest, WhoIsMissingIsNamed) {
  const int port = free_port();
  EXPECT_THAT(meet_all({guest_of(0, 12, port), guest_of(2, 12, port)}, 2s)[0],
              AllOf(StartsWith("CommError: rank 0 waited in vain at port "),
                    HasSubstr("for these ranks to connect: 1, 3, 4, 5, 6, 7, 8, 9, and 2 more; ")));
  EXPECT_THAT(meet_all({guest_of(1, 2, port)}, 100ms)[0],
              AllOf(StartsWith("CommError: rank 1 on here cannot connect to rank 0 at 127.0.0.1:" +
                               std::to_string(port)),
                    HasSubstr("Connection refused"), HasSubstr("check that it was started")));
  EXPECT_THAT(
      meet_all({guest_of(1, 2, port, "no.such.host.invalid")}, 100ms)[0],
      AllOf(HasSubstr("no.such.host.invalid cannot be resolved"), HasSubstr("MASTER_ADDR")));
}

// Long before the time-out a warning says who has not come.
TEST(RendezvousTest, AWarningNamesTheMissingWithinTenSeconds) {
  const int port = free_port();
  CapturedStderr captured_err;
  meet_all({guest_of(0, 3, port), guest_of(2, 3, port)}, 6s);
  EXPECT_THAT(captured_err.text(), HasSubstr("rank 0 waits at port " + std::to_string(port) +
                                             " for these ranks to connect: 1"));
}

}  // namespace
}  // namespace megatron::comm::tcp

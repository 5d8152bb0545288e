#include "megatron/launch/hosts.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <memory>
#include <thread>

#include "megatron/core/error.h"
#include "megatron/core/exit_code.h"
#include "tests/support/message_of.h"

namespace megatron::launch {
namespace {

using namespace std::chrono_literals;
using testing::AllOf;
using testing::HasSubstr;

const comm::Secret kSecret("a secret of thirty-two characters");

int free_port() {
  const comm::tcp::Address loopback = comm::tcp::numeric_address("127.0.0.1", 0);
  return ntohs(comm::tcp::own_address(comm::tcp::listen_at(loopback, 1).get()).port());
}

HostPlace place_of(int64_t host, int64_t num_hosts, int port) {
  return {.host = host, .num_hosts = num_hosts, .master_address = "127.0.0.1", .master_port = port};
}

const JobOutcome kWell = {};
const JobOutcome kReleased = {.exit_code = 1, .reason = "released", .is_released = true};
const JobOutcome kKilled = {.exit_code = 137, .reason = "killed"};
const JobOutcome kInput = {.exit_code = kExitInput, .reason = "input"};
const JobOutcome kTold = {.exit_code = 143, .reason = "told", .is_final = true};

TEST(HostsTest, WhatFailedFirstIsTheOutcome) {
  EXPECT_EQ(outcome_of_all({kWell, kWell}).exit_code, 0);
  EXPECT_EQ(outcome_of_all({kWell, kReleased}).reason, "released");
  EXPECT_EQ(outcome_of_all({kReleased, kWell, kKilled, kTold}).reason, "killed");
  EXPECT_TRUE(outcome_of_all({kReleased, kWell, kKilled, kTold}).is_final);
  EXPECT_FALSE(outcome_of_all({kReleased, kWell, kKilled}).is_final);
  EXPECT_EQ(outcome_of_all({kKilled, kInput}).reason, "input");
}

TEST(HostsTest, AllLearnTheSameAttemptAfterAttempt) {
  const int port = free_port();
  const std::vector<std::vector<JobOutcome>> attempts = {
      {kReleased, kReleased, kKilled}, {kWell, kInput, kReleased}, {kWell, kWell, kWell}};
  const std::vector<std::string> want = {"killed", "input", ""};
  std::vector<std::string> secrets(3);
  std::vector<std::thread> threads;
  for (int64_t host = 0; host < 3; ++host) {
    threads.emplace_back([&, host] {
      Hosts hosts(place_of(host, 3, port), 1000 + static_cast<int>(host), kSecret, 10s);
      EXPECT_EQ(hosts.ranks_port(), 1000);
      secrets[static_cast<size_t>(host)] = hosts.ranks_secret().text();
      for (size_t i = 0; i < attempts.size(); ++i) {
        const JobOutcome& here = attempts[i][static_cast<size_t>(host)];
        while (i < 2 && here.exit_code == 0 && !hosts.has_failed_elsewhere()) {
          std::this_thread::yield();
        }
        EXPECT_EQ(hosts.agreed(here).reason, want[i]);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(secrets[0].size(), 64u);
  EXPECT_THAT(secrets, testing::Each(secrets[0]));
  EXPECT_NE(secrets[0], kSecret.text());
}

// Whichever it is, and whether or not this one has noticed before it speaks.
TEST(HostsTest, AHostThatIsGoneEndsTheOther) {
  for (const int64_t victim : {0, 1}) {
    for (const bool is_noticed : {false, true}) {
      const int port = free_port();
      std::unique_ptr<Hosts> hosts[2];
      std::thread other(
          [&] { hosts[1] = std::make_unique<Hosts>(place_of(1, 2, port), 1, kSecret, 10s); });
      hosts[0] = std::make_unique<Hosts>(place_of(0, 2, port), 1, kSecret, 10s);
      other.join();
      hosts[victim].reset();
      Hosts& left = *hosts[1 - victim];
      while (is_noticed && !left.has_failed_elsewhere()) std::this_thread::yield();
      const auto begin = std::chrono::steady_clock::now();
      const JobOutcome outcome = left.agreed(is_noticed ? kReleased : kWell);
      EXPECT_LT(std::chrono::steady_clock::now() - begin, 3s);
      EXPECT_EQ(outcome.exit_code, kExitFault);
      EXPECT_TRUE(outcome.is_final);
      EXPECT_THAT(outcome.reason, HasSubstr("is gone: its launch has ended"));
    }
  }
}

TEST(HostsTest, WhoDoesNotComeIsNamed) {
  const int port = free_port();
  EXPECT_THAT(message_of<CommError>([&] { Hosts(place_of(0, 3, port), 1, kSecret, 50ms); }),
              AllOf(HasSubstr("host 0 waited in vain at port " + std::to_string(port)),
                    HasSubstr("for these hosts to connect: 1, 2; check that they were started")));
  EXPECT_THAT(message_of<CommError>([&] { Hosts(place_of(1, 3, port), 1, kSecret, 50ms); }),
              AllOf(HasSubstr("host 1 ("),
                    HasSubstr("cannot connect to host 0 at 127.0.0.1:" + std::to_string(port)),
                    HasSubstr("Connection refused"), HasSubstr("check that it was started"),
                    HasSubstr("firewall")));
}

}  // namespace
}  // namespace megatron::launch

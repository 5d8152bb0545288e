#pragma once

#include <chrono>
#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "megatron/comm/secret.h"
#include "megatron/comm/tcp/channel.h"

namespace megatron::comm::tcp {

// The rendezvous point of a job's processes, and their number.
struct RendezvousPoint {
  Purpose purpose = Purpose::kRanks;
  std::string address;  // of number 0
  int port = 0;
  int64_t count = 1;
  // For messages: "rank", and how to give processes different numbers.
  std::string noun = "rank";
  std::string remedy = "give each process its own RANK";
};

// One process's description of itself.
struct Member {
  int64_t number = 0;
  std::string name;  // "rank 3 on gpu7"
  // Settings that must be equal on all: {"--nnodes", "2"}.
  std::vector<std::pair<std::string, std::string>> settings;
  std::string card;     // data for all others, such as the port where it listens
  std::string address;  // as seen by number 0: "10.0.0.7"; empty for number 0
};

struct Rendezvous {
  std::vector<Member> members;          // by number; without their settings
  std::map<int64_t, Channel> channels;  // number 0: to all others; others: to number 0
  std::vector<Socket> listeners;        // of number 0, still open
};

// The rendezvous of a job: all members connect to number 0, which compares their settings and sends
// the result to all. Foreign connections have no effect: see PendingConnections.
//
// Throws the same ConfigError on all members, with a list of conflicts: different programs,
// different settings, two members with one number. Throws CommError, which names the members that
// did not arrive in time, or the foreign program that answers in place of number 0; a warning names
// them after five seconds.
Rendezvous join_rendezvous(const RendezvousPoint& place, const Member& own, const Secret& secret,
                           std::chrono::milliseconds timeout);

}  // namespace megatron::comm::tcp

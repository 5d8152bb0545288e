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

// Where the processes of a job meet, and how many of them.
struct MeetingPlace {
  Purpose purpose = Purpose::kRanks;
  std::string address;  // of number 0
  int port = 0;
  int64_t count = 1;
  // Words for messages: "rank", and what tells two of them apart.
  std::string noun = "rank";
  std::string remedy = "give each process its own RANK";
};

// What one of them says of itself.
struct Member {
  int64_t number = 0;
  std::string name;  // "rank 3 on gpu7"
  // What has to be equal on all: {"--nnodes", "2"}.
  std::vector<std::pair<std::string, std::string>> settings;
  std::string card;     // for all others: the port where it waits, say
  std::string address;  // where number 0 sees it: "10.0.0.7"; empty for number 0
};

struct Meeting {
  std::vector<Member> members;          // by number; without their settings
  std::map<int64_t, Channel> channels;  // number 0: to each other one; others: to number 0
  std::vector<Socket> listeners;        // of number 0: still open
};

// All members of a job meet at number 0, which compares what they are and tells all of them.
// Connections of strangers change nothing: each has a few seconds to prove that it knows the
// secret, so many may try at once, and one warning tells of them.
//
// Throws ConfigError, on all members the same, that lists what does not fit: programs that differ,
// settings that differ, two of one number. Throws CommError that names who did not come in time,
// or what answers in place of number 0; a warning names them after five seconds.
Meeting meet(const MeetingPlace& place, const Member& own, const Secret& secret,
             std::chrono::milliseconds timeout);

}  // namespace megatron::comm::tcp

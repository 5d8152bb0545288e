#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "megatron/comm/messages/wire.h"
#include "megatron/comm/transport.h"

namespace megatron::comm {

// Sorts what comes over the wire into the groups it is for. One for a process.
class PostOffice {
 public:
  PostOffice(std::unique_ptr<Wire> wire, std::shared_ptr<RankContext> context);

  Wire& wire() { return *wire_; }
  const std::shared_ptr<RankContext>& context() const { return context_; }

  // A message to or from a member of a group.
  struct Parcel {
    int member = 0;
    void* data = nullptr;  // only read when it is sent
    int64_t bytes = 0;
  };
  // What one group does at once.
  struct Round {
    const Transport& self;
    uint64_t group;
    Call call;
  };
  // Sends and receives all parcels and waits for them. Every sender must have made the same call as
  // this rank; in a recv, the send of that size. Throws CommError that names who did not or did not
  // come.
  void exchange(const Round& round, std::span<const Parcel> out, std::span<const Parcel> in);
  // Sends a copy, without waiting.
  void post(const Round& round, const Parcel& parcel);
  // Waits until all that was posted has gone.
  void flush();

  // What another rank said when it failed, as far as this rank's calls have noticed. Thread safe.
  std::optional<std::string> failure() const;

 private:
  struct Letter {  // came before it was asked for
    Header header;
    std::unique_ptr<std::byte[]> body;
  };
  struct Awaited {
    Parcel parcel;
    int peer = 0;  // its rank in the world
    bool is_done = false;
  };
  enum class Phase { kHeader, kBody };
  struct Peer {
    Phase phase = Phase::kHeader;
    Awaited* to = nullptr;  // of the body under way; null: a letter
    Letter letter;
    // By group and whether it is a message (the others are collectives).
    std::map<std::pair<uint64_t, bool>, std::deque<Letter>> early;
  };
  struct Posted {
    std::unique_ptr<std::byte[]> body;
    std::unique_ptr<Sending> sending;
  };

  // Moves on what has come from the peer of `awaited`. True when something has.
  bool progress(const Round& round, Awaited& awaited);
  void check(const Round& round, const Awaited& awaited, const Header& header) const;
  void forget_posted();
  // Between two looks: tells of failures, gives up, gives way.
  class Patience;

  std::unique_ptr<Wire> wire_;
  std::shared_ptr<RankContext> context_;
  std::vector<Peer> peers_;
  std::deque<Posted> posted_;
  mutable std::mutex mutex_;
  std::string failure_;
};

}  // namespace megatron::comm

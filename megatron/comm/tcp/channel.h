#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "megatron/comm/secret.h"
#include "megatron/comm/tcp/sockets.h"

namespace megatron::comm::tcp {

// What a connection is for. Both ends name the same purpose.
enum class Purpose : uint8_t { kHosts = 1, kRanks = 2, kData = 3 };

// A connection whose two ends prove to each other that they know the job's secret, and then
// exchange records. Nothing waits: advance() moves what can be moved.
//
//   caller   -> listener   "megatron", version, purpose, 32 random bytes
//   listener -> caller     the same with random bytes of its own, proof of the listener
//   caller   -> listener   proof of the caller; then both: records, 4 bytes of size before each
//
// A proof is the HMAC-SHA256 of the end's role and both greetings: it is good for this connection
// only. Until the other end has proved itself, at most 80 bytes of it are kept.
class Channel {
 public:
  enum class End { kCaller, kListener };
  enum class State { kProving, kOpen, kGone };

  // `socket` does not block; that of a caller may still be connecting.
  Channel(Socket socket, End end, Purpose purpose, const Secret& secret);

  // Writes and reads what the connection takes and has. Reads no further than the end of the next
  // record, until next() has taken it.
  void advance();
  // Only writes.
  void flush();
  State state() const { return state_; }
  // Why it is gone: "it was closed".
  const std::string& problem() const { return problem_; }
  // Gone because the other end is no part of this job: another program, or another secret.
  bool is_stranger() const { return is_stranger_; }

  // Records of at most kMaxRecord bytes. They leave once the other end has proved itself; when it
  // is gone they are dropped.
  static constexpr size_t kMaxRecord = size_t{16} << 20;
  void send(std::string_view record);
  bool has_output() const { return sent_ < out_.size(); }
  bool has_record() const { return record_.has_value(); }
  std::optional<std::string> next();

  int descriptor() const { return socket_.get(); }
  // What to wait for in poll().
  int16_t events() const;
  // The connection, for what has a form of its own. REQUIRES: open, and nothing left to send.
  Socket release() { return std::move(socket_); }

 private:
  // Reads on in the piece that comes now; false when there is no more for now.
  bool receive();
  void take_piece();
  void take_greeting();
  void take_reply();
  void lose(const std::string& problem, bool is_stranger = false);
  Secret::Digest proof(End end) const;
  size_t piece_size() const;

  Socket socket_;
  End end_;
  Purpose purpose_;
  Secret secret_;
  State state_ = State::kProving;
  std::string problem_;
  bool is_stranger_ = false;
  std::string greeting_;  // of the caller
  std::string answer_;    // of the listener
  std::string in_;        // of the piece that comes now
  size_t record_size_ = 0;
  bool is_in_record_ = false;
  std::optional<std::string> record_;
  std::string out_;
  size_t sent_ = 0;
  std::string waiting_;  // records that wait for the proof
};

// Text of strangers for a message: printable ASCII, other bytes as \x1b; cut after 40 bytes.
std::string escaped(std::string_view text);

}  // namespace megatron::comm::tcp

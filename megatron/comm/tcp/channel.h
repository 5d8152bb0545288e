#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "megatron/comm/secret.h"
#include "megatron/comm/tcp/sockets.h"

namespace megatron::comm::tcp {

// The purpose of a connection. Both ends must name the same one.
enum class Purpose : uint8_t { kHosts = 1, kRanks = 2, kData = 3 };

// A mutually authenticated connection: both ends prove that they know the job's secret, and then
// exchange records. Non-blocking: advance() transfers as much as possible.
//
//   caller   -> listener   "megatron", version, purpose, 32 random bytes
//   listener -> caller     the same with random bytes of its own, proof of the listener
//   caller   -> listener   proof of the caller; then both: records, 4 bytes of size before each
//
// A proof is the HMAC-SHA256 of the end's role and both greetings, so it is valid only for this
// connection. Before the other end's proof, at most 80 bytes from it are stored.
class Channel {
 public:
  enum class End { kCaller, kListener };
  enum class State { kProving, kOpen, kGone };

  // `socket` is non-blocking; a caller's may still be connecting.
  Channel(Socket socket, End end, Purpose purpose, const Secret& secret);

  // Writes and reads as much as the connection allows. Does not read past the next record until
  // next() has taken it.
  void advance();
  // Writes only.
  void flush();
  State state() const { return state_; }
  // The reason for kGone: "it was closed".
  const std::string& problem() const { return problem_; }
  // The other end does not belong to this job: another program, or another secret.
  bool is_stranger() const { return is_stranger_; }

  // Sends a record of at most kMaxRecord bytes after the other end's proof; drops it if the channel
  // is gone.
  static constexpr size_t kMaxRecord = size_t{16} << 20;
  void send(std::string_view record);
  bool has_output() const { return sent_ < out_.size(); }
  bool has_record() const { return record_.has_value(); }
  std::optional<std::string> next();

  int descriptor() const { return socket_.get(); }
  // Events to wait for in poll().
  int16_t events() const;
  // Releases the socket to another protocol. REQUIRES: open, and nothing left to send.
  Socket release() { return std::move(socket_); }

 private:
  // Reads more of the current piece; false if nothing more has arrived.
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
  std::string greeting_;  // from the caller
  std::string answer_;    // from the listener
  std::string in_;        // the current piece
  size_t record_size_ = 0;
  bool is_in_record_ = false;
  std::optional<std::string> record_;
  std::string out_;
  size_t sent_ = 0;
  std::string waiting_;  // records to send after the proof
};

// Untrusted text for a message: printable ASCII, other bytes as \x1b; at most 40 bytes.
std::string escaped(std::string_view text);

}  // namespace megatron::comm::tcp

#pragma once

#include <chrono>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <thread>

#include "megatron/comm/messages/wire.h"
#include "megatron/comm/transport.h"

namespace megatron::comm {

// Sorts incoming messages of the wire by group. One for a process. A separate thread tends the wire
// while the rank computes: it sends messages, accepts connections, and tells others that this rank
// is busy (Working).
class MessageRouter {
 public:
  // Without a porter (tests with thousands of offices) only waiting ranks tend the wire.
  enum class ProgressThread { kThread, kNone };
  MessageRouter(std::unique_ptr<Wire> wire, std::shared_ptr<RankContext> context,
                ProgressThread porter = ProgressThread::kThread);
  ~MessageRouter();
  MessageRouter(const MessageRouter&) = delete;
  MessageRouter& operator=(const MessageRouter&) = delete;

  int rank() const { return rank_; }
  int size() const { return size_; }
  const std::shared_ptr<RankContext>& context() const { return context_; }

  // A message to or from a member of a group.
  struct Parcel {
    int member = 0;
    void* data = nullptr;  // only read if it is sent
    int64_t bytes = 0;
  };
  // The current call of one group.
  struct Round {
    const Transport& self;
    uint64_t group;
    Call call;
  };
  // Sends and receives all parcels and waits for them. Every sender must have made the same call as
  // this rank, with as many bytes. Throws CommError, which names the ranks that did not.
  void exchange(const Round& round, std::span<const Parcel> out, std::span<const Parcel> in);
  // Sends a copy, without waiting.
  void post(const Round& round, const Parcel& parcel);
  // Starts sending data that stays unchanged until the sending is done.
  std::unique_ptr<Sending> start(const Round& round, const Parcel& parcel);
  // Waits until all but `left` of the sendings are done.
  void finish(const Round& round, std::deque<std::unique_ptr<Sending>>& sendings, size_t left = 0);
  // Waits until all posted messages have left.
  void flush();

  // Another rank's report of its failure, as soon as a call of this rank has noticed it. Thread
  // safe.
  std::optional<std::string> failure() const;
  // As in Transport. Thread safe.
  void hear_news();
  bool may_wait(std::chrono::steady_clock::time_point begin);
  // Tells the others that this process ends after a failure; or that all is done.
  void tell_failure(const std::string& message);
  void close();

  struct Traffic {
    int64_t messages = 0;
    int64_t bytes = 0;
    int64_t peers = 0;  // ranks that messages went to or came from
  };
  Traffic traffic() const;

 private:
  struct Letter;
  struct Awaited;
  enum class Phase;
  struct Peer;
  struct Posted;
  struct Mail;
  using Lock = std::unique_lock<std::mutex>;
  class Started;

  std::unique_ptr<Sending> begin(const Round& round, const Parcel& parcel);
  // Advances what has arrived from the peer of `awaited`. True if anything has.
  bool progress(const Round& round, Awaited& awaited);
  void begin_letter(int peer, Peer& from);
  bool is_letter_done(int peer, Peer& from);
  void check(const Round& round, const Awaited& awaited, const Header& header) const;
  void forget_posted();
  void hear_news_locked();
  bool may_go_on(std::chrono::steady_clock::time_point begin,
                 std::chrono::steady_clock::time_point now) const;
  void warn_of_work() const;
  [[noreturn]] void give_up(const Round& round, std::span<const Awaited> awaited) const;
  void throw_if_released(const Round& round) const;
  void tend();
  void run_porter();
  void stop_porter();
  // Between two polls: checks for failures and time-outs, and yields.
  class Patience;

  std::unique_ptr<Wire> wire_;
  const int rank_;
  const int size_;
  std::shared_ptr<RankContext> context_;

  mutable std::mutex mutex_;  // guards the wire and all that follows
  std::unique_ptr<Mail> mail_;
  std::string failure_;
  Traffic traffic_;
  bool is_waiting_ = false;                         // the rank is in a call
  std::chrono::steady_clock::time_point waited_{};  // the last may_wait()
  std::chrono::steady_clock::time_point warned_{};  // the begin of the last wait with a warning
  std::chrono::steady_clock::time_point told_work_{};
  std::chrono::steady_clock::time_point heard_work_{};
  std::string last_work_;  // which rank, and its work
  bool is_over_ = false;
  std::thread porter_;
};

}  // namespace megatron::comm

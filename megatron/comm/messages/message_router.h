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

// Matches incoming messages of the wire with groups; one per process. A progress thread serves the
// wire while the rank computes: it sends messages, accepts connections, and sends heartbeats that
// report this rank's work (Working).
class MessageRouter {
 public:
  // kNone: only ranks that wait make progress (tests with thousands of routers).
  enum class ProgressThread { kThread, kNone };
  MessageRouter(std::unique_ptr<Wire> wire, std::shared_ptr<RankContext> context,
                ProgressThread thread = ProgressThread::kThread);
  ~MessageRouter();
  MessageRouter(const MessageRouter&) = delete;
  MessageRouter& operator=(const MessageRouter&) = delete;

  int rank() const { return rank_; }
  int size() const { return size_; }
  const std::shared_ptr<RankContext>& context() const { return context_; }

  // Data sent to or received from a member of a group.
  struct Message {
    int member = 0;
    void* data = nullptr;  // only read by a send
    int64_t bytes = 0;
  };
  // The current call of one group.
  struct Round {
    const Transport& self;
    uint64_t group;
    Call call;
  };
  // Sends and receives all messages and waits for them. Throws CommError, which names the ranks, if
  // a sender made another call or sent another number of bytes.
  void exchange(const Round& round, std::span<const Message> out, std::span<const Message> in);
  // Sends a copy, without waiting.
  void post(const Round& round, const Message& message);
  // Starts sending data that stays unchanged until the sending is done.
  std::unique_ptr<Sending> start(const Round& round, const Message& message);
  // Waits until at most `left` sendings are pending.
  void finish(const Round& round, std::deque<std::unique_ptr<Sending>>& sendings, size_t left = 0);
  // Waits until all posted messages have been sent.
  void flush();

  // The failure of another rank, once a call of this rank has received its report. Thread safe.
  std::optional<std::string> failure() const;
  // As in Transport. Thread safe.
  void check_for_failures();
  bool may_keep_waiting(std::chrono::steady_clock::time_point begin);
  // Prints the stacks of this process, once, and asks all others to do so.
  void print_all_stacks();
  // Reports to the others that this process ends, after a failure or normally.
  void tell_failure(const std::string& message);
  void close();

  struct Traffic {
    int64_t messages = 0;
    int64_t bytes = 0;
    int64_t peers = 0;  // ranks with messages to or from this one
  };
  Traffic traffic() const;

 private:
  struct Unexpected;
  struct Awaited;
  enum class Phase;
  struct Peer;
  struct Posted;
  struct Mail;
  using Lock = std::unique_lock<std::mutex>;
  class Started;

  std::unique_ptr<Sending> begin(const Round& round, const Message& message);
  // Processes data from the peer of `awaited`. True if any has arrived.
  bool progress(const Round& round, Awaited& awaited);
  void receive_unexpected(int peer, Peer& from);
  bool is_unexpected_done(int peer, Peer& from);
  void check(const Round& round, const Awaited& awaited, const Header& header) const;
  void discard_sent();
  void read_reports();
  void print_own_stacks();
  bool has_time_left(std::chrono::steady_clock::time_point begin,
                     std::chrono::steady_clock::time_point now) const;
  void warn_of_work() const;
  [[noreturn]] void throw_timeout(const Round& round, std::span<const Awaited> awaited);
  void throw_if_released(const Round& round) const;
  void make_progress();
  void run_progress_thread();
  void stop_progress_thread();
  // A waiting loop's pause between polls: checks for failures and time-outs, and yields.
  class WaitLimit;

  std::unique_ptr<Wire> wire_;
  const int rank_;
  const int size_;
  std::shared_ptr<RankContext> context_;

  mutable std::mutex mutex_;  // guards the wire and all that follows
  std::unique_ptr<Mail> mail_;
  std::string failure_;
  Traffic traffic_;
  bool is_waiting_ = false;                         // the rank is in a call
  std::chrono::steady_clock::time_point waited_{};  // the last may_keep_waiting()
  std::chrono::steady_clock::time_point warned_{};  // beginning of the last wait with a warning
  std::chrono::steady_clock::time_point work_reported_{};
  std::chrono::steady_clock::time_point work_heard_{};
  bool has_printed_stacks_ = false;
  std::string last_work_;  // "rank 3 is saving iteration 40"
  bool is_over_ = false;
  std::thread progress_thread_;
};

}  // namespace megatron::comm

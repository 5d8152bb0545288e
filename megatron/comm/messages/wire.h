#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <string>

#include "megatron/comm/call.h"

namespace megatron::comm {

// The header of a message between two processes, sent as in memory: all processes run the same
// program on the same kind of machine.
struct Header {
  uint64_t group = 0;  // identity
  Call call;           // of the sender
  int64_t bytes = 0;   // of the body
};

// True if a received header is valid: known enums and consistent sizes.
bool is_valid(const Header& header);

// A message being sent.
class Sending {
 public:
  virtual ~Sending() = default;
  virtual bool is_done() = 0;
};

// Ordered message streams between all pairs of processes of a job. Non-blocking: operations are
// started and polled. One thread at a time uses it, under the lock of its MessageRouter; only
// wait_for_progress() and wake() need no lock.
class Wire {
 public:
  Wire() = default;
  virtual ~Wire() = default;
  Wire(const Wire&) = delete;
  Wire& operator=(const Wire&) = delete;

  virtual int rank() const = 0;
  virtual int size() const = 0;

  // `body` lives until the sending is done or destroyed.
  virtual std::unique_ptr<Sending> send(int peer, const Header& header, const void* body) = 0;
  // The header of the next message from a peer, if it has arrived. The caller then receives its
  // body: as a whole, or in parts if takes_parts().
  virtual std::optional<Header> next(int peer) = 0;
  virtual void begin_body(int peer, void* to, int64_t bytes) = 0;
  virtual bool is_body_done(int peer) = 0;
  virtual bool takes_parts() const { return true; }

  struct Report {
    int rank = 0;
    std::string message;
  };
  // Broadcasts why this process ends; reads another process's report. A broken connection counts as
  // a failure of its peer.
  virtual void tell_failure(const std::string& message) = 0;
  virtual std::optional<Report> failure() = 0;
  // Broadcasts this process's current work; reads the reports of others since the last call.
  virtual void tell_work(const std::string& what) = 0;
  virtual std::optional<Report> work() = 0;

  // Asks all processes to print their stacks; true once after another process has asked.
  virtual void ask_for_stacks() {}
  virtual bool are_stacks_wanted() { return false; }

  // Pauses a thread that waits for messages, and has got none for `idle`, until data arrives or a
  // short time has passed. Releases the lock meanwhile.
  virtual void wait_briefly(std::unique_lock<std::mutex>& lock,
                            std::chrono::steady_clock::duration idle) = 0;

  // Background work: accepts connections, continues sendings, forwards reports.
  virtual void progress() = 0;
  // True while something is being sent.
  virtual bool is_busy() const = 0;
  // Waits until progress() has work, wake() is called or the time is over.
  virtual void wait_for_progress(std::chrono::milliseconds time) = 0;
  virtual void wake() = 0;

  // Waits for all processes before a normal end. Without it, the destructor cleans nothing up, and
  // the launcher ends the job.
  virtual void close() = 0;
};

}  // namespace megatron::comm

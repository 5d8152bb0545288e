#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <string>

#include "megatron/comm/call.h"

namespace megatron::comm {

// The header of a message between two processes. It travels as in memory, because all processes run
// the same program on the same kind of machine.
struct Header {
  uint64_t group = 0;  // identity
  Call call;           // according to the sender
  int64_t bytes = 0;   // of the body
};

// Is a received header valid? Its enums must be known and its sizes consistent.
bool is_valid(const Header& header);

// A message on its way.
class Sending {
 public:
  virtual ~Sending() = default;
  virtual bool is_done() = 0;
};

// Ordered streams of messages between every two processes of a job. Nothing blocks: operations are
// started and polled. One thread at a time uses it, under the lock of its MessageRouter; only
// wait_to_tend() and wake() need no lock.
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
  // The header of the next message from a peer, if it has arrived. Its body is received next: as a
  // whole, or in parts if takes_parts().
  virtual std::optional<Header> next(int peer) = 0;
  virtual void begin_body(int peer, void* to, int64_t bytes) = 0;
  virtual bool is_body_done(int peer) = 0;
  virtual bool takes_parts() const { return true; }

  struct News {
    int rank = 0;
    std::string message;
  };
  // Tells all others why this process ends; reads the report of another one. A broken connection is
  // a failure of the rank at its other end.
  virtual void tell_failure(const std::string& message) = 0;
  virtual std::optional<News> failure() = 0;
  // Tells all others this process's work; reads reports since the last call.
  virtual void tell_work(const std::string& what) = 0;
  virtual std::optional<News> work() = 0;

  // The thread that waits for messages yields to others until something arrives or a moment has
  // passed. Nothing has arrived for `idle`. The lock is free meanwhile.
  virtual void rest(std::unique_lock<std::mutex>& lock,
                    std::chrono::steady_clock::duration idle) = 0;

  // Work besides the messages that a rank waits for: accepts connections, continues sendings,
  // passes reports on.
  virtual void tend() = 0;
  // Has tend() more to do than to listen? It has while something is being sent.
  virtual bool is_busy() const = 0;
  // Waits until tend() has work, wake() was called or the time is over.
  virtual void wait_to_tend(std::chrono::milliseconds time) = 0;
  virtual void wake() = 0;

  // Waits for all processes before a normal end. Without it, the destructor leaves everything as it
  // is, and the launcher ends the job.
  virtual void close() = 0;
};

}  // namespace megatron::comm

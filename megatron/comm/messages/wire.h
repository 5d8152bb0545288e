#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <string>

#include "megatron/comm/call.h"

namespace megatron::comm {

// What comes before the bytes of a message between two processes. All run the same program on the
// same kind of machine: it travels as it lies in memory.
struct Header {
  uint64_t group = 0;  // identity
  Call call;           // as the sender says it
  int64_t bytes = 0;   // that follow
};

// Whether a header that came from elsewhere can be one: known enums, sizes that fit each other.
bool is_valid(const Header& header);

// A message on its way.
class Sending {
 public:
  virtual ~Sending() = default;
  virtual bool is_done() = 0;
};

// Ordered streams of messages between every two processes of a job. Nothing waits: operations begin
// and are asked for. One thread at a time uses it, under the lock of its PostOffice; only
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
  // The header of the next message from a peer, once it is there. Its body is received next, as a
  // whole, or in parts where takes_parts().
  virtual std::optional<Header> next(int peer) = 0;
  virtual void begin_body(int peer, void* to, int64_t bytes) = 0;
  virtual bool is_body_done(int peer) = 0;
  virtual bool takes_parts() const { return true; }

  struct News {
    int rank = 0;
    std::string message;
  };
  // Tells all others why this process goes; what another one has told. A connection that breaks is
  // a failure of the rank at its other end.
  virtual void tell_failure(const std::string& message) = 0;
  virtual std::optional<News> failure() = 0;
  // Tells all others what this process is busy with; what another one has told since the last call.
  virtual void tell_work(const std::string& what) = 0;
  virtual std::optional<News> work() = 0;

  // The thread that waits for messages gives way to others, until something moves or a moment has
  // passed. Nothing has moved for `idle`. The lock is free meanwhile.
  virtual void rest(std::unique_lock<std::mutex>& lock,
                    std::chrono::steady_clock::duration idle) = 0;

  // What goes on beside the messages that a rank waits for: accepts connections, moves on what is
  // being sent, passes news on.
  virtual void tend() = 0;
  // Whether tend() has more to do than to listen: something is being sent.
  virtual bool is_busy() const = 0;
  // Waits until there is something to tend, wake() was called or the time is over.
  virtual void wait_to_tend(std::chrono::milliseconds time) = 0;
  virtual void wake() = 0;

  // Every process is about to end in good order; waits for the others. Without it, the destructor
  // leaves everything as it is, for the launcher to end the job.
  virtual void close() = 0;
};

}  // namespace megatron::comm

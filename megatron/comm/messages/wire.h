#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
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

// A message on its way.
class Sending {
 public:
  virtual ~Sending() = default;
  virtual bool is_done() = 0;
};

// Ordered streams of messages between every two processes of a job. Nothing waits: operations begin
// and are asked for. A connection that breaks is a failure of the rank at its other end. One thread
// uses it.
class Wire {
 public:
  Wire() = default;
  virtual ~Wire() = default;
  Wire(const Wire&) = delete;
  Wire& operator=(const Wire&) = delete;

  virtual int rank() const = 0;
  virtual int size() const = 0;

  // `body` lives until the sending is done.
  virtual std::unique_ptr<Sending> send(int peer, const Header& header, const void* body) = 0;
  // The header of the next message from a peer, once it is there. Its body is received next.
  virtual std::optional<Header> next(int peer) = 0;
  virtual void begin_body(int peer, void* to, int64_t bytes) = 0;
  virtual bool is_body_done(int peer) = 0;

  // Tells all others why this process goes; what another one has told.
  virtual void tell_failure(const std::string& message) = 0;
  struct Failure {
    int rank = 0;
    std::string message;
  };
  virtual std::optional<Failure> failure() = 0;

  // Gives way to other threads, and at most a few milliseconds. Nothing has moved for `idle`.
  virtual void rest(std::chrono::steady_clock::duration idle) = 0;

  // Every process is about to end in good order; waits for the others. Without it, the destructor
  // leaves everything as it is, for the launcher to end the job.
  virtual void close() = 0;
};

}  // namespace megatron::comm

#pragma once

#include <chrono>
#include <utility>
#include <vector>

#include "megatron/comm/launch_environment.h"

namespace megatron::comm::tcp {

// A file descriptor, closed exactly once.
class Socket {
 public:
  explicit Socket(int descriptor = -1) : descriptor_(descriptor) {}
  Socket(Socket&& other) noexcept : descriptor_(std::exchange(other.descriptor_, -1)) {}
  Socket& operator=(Socket&& other) noexcept {
    std::swap(descriptor_, other.descriptor_);
    return *this;
  }
  ~Socket();

  int get() const { return descriptor_; }
  bool is_open() const { return descriptor_ >= 0; }

 private:
  int descriptor_;
};

// Connects every two processes of a job. They meet at rank 0, which waits at place.master_address
// and tells each where the others wait. Returns a socket for each rank, none for this one; they do
// not block. Throws CommError that names who did not come in time.
std::vector<Socket> connect_all(const LaunchEnvironment& place, std::chrono::milliseconds timeout);

}  // namespace megatron::comm::tcp

#pragma once

#include <netinet/in.h>
#include <sys/socket.h>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

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

// A host and a port there, of IPv4 or IPv6.
struct Address {
  sockaddr_storage storage{};
  socklen_t length = 0;

  sockaddr* get() { return reinterpret_cast<sockaddr*>(&storage); }
  in_port_t& port();  // as it travels
  bool is_loopback() const;
  bool is_own() const;  // of this host
};

// A moment until which calls wait.
class Deadline {
 public:
  using Clock = std::chrono::steady_clock;
  explicit Deadline(std::chrono::milliseconds timeout) : end_(Clock::now() + timeout) {}

  bool is_over() const { return Clock::now() >= end_; }
  std::chrono::milliseconds left() const;  // at least 0
  // The earlier of this one and that in so many milliseconds.
  Deadline within(std::chrono::milliseconds timeout) const;
  // Whether the socket becomes ready for these events of poll() in time.
  bool wait(int descriptor, int16_t events) const;

 private:
  Clock::time_point end_;
};

// The addresses that a name stands for. Throws CommError.
std::vector<Address> resolve(const std::string& name, int port);
// The two ends of a connection.
Address own_address(int descriptor);
Address peer_address(int descriptor);

// Waits for connections at a port of all of this host's addresses; 0 takes a free one. Throws
// CommError.
Socket listen_at(int port, int backlog);
// The next of those who wait there; not open when there is none.
Socket accept_at(int listener);
// A connection to the first address that answers before the deadline; not open, with errno, when
// none does.
Socket connect_once(const std::vector<Address>& addresses, const Deadline& deadline);

// All of a small record; false when the other side is gone or time is up.
bool read_all(int descriptor, void* data, size_t bytes, const Deadline& deadline);
bool write_all(int descriptor, const void* data, size_t bytes, const Deadline& deadline);

// Small records leave at once, and an idle connection is neither forgotten by what lies between the
// hosts nor believed in for ever when one of them is gone.
void keep_alive(int descriptor);

}  // namespace megatron::comm::tcp

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
  bool is_own() const;       // of this host
  std::string host() const;  // "10.0.0.7"
  std::string str() const;   // "10.0.0.7:29500"
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
// The other end; of no family when it is gone.
Address peer_if_there(int descriptor);
// The address that is written so: "10.0.0.7", "::1". Throws CommError.
Address numeric_address(const std::string& host, int port);

// Every address of this host, at a port.
Address any_address(int port);
// Whether a name stands for the host that asks, on every host: localhost, 127.0.0.1, ::1.
bool is_local_name(const std::string& name);
// Where rank 0, or host 0, waits: the addresses of this host that `name` stands for. All addresses,
// with a warning, where the name stands for none that other hosts can reach: for an address of
// another machine, which forwards, or for loopback, as some systems name themselves.
std::vector<Address> own_addresses(const std::string& name, int port);

// The address of this host from which connections to the first reachable of these come; port 0.
// Throws CommError.
Address address_towards(const std::vector<Address>& addresses);

// Waits for connections at one address; port 0 takes a free one. Throws CommError.
Socket listen_at(const Address& address, int backlog);
std::vector<Socket> listen_at(const std::vector<Address>& addresses, int backlog);
// The next of those who wait there; not open when there is none.
Socket accept_at(int listener);
// A connection that begins: it is there once the socket can be written; not open, with errno, when
// it cannot begin.
Socket begin_connection(Address address);
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

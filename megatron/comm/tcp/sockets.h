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

// An IPv4 or IPv6 address and a port.
struct Address {
  sockaddr_storage storage{};
  socklen_t length = 0;

  sockaddr* get() { return reinterpret_cast<sockaddr*>(&storage); }
  in_port_t& port();  // in network byte order
  bool is_loopback() const;
  bool is_own() const;       // of this host
  std::string host() const;  // "10.0.0.7"
  std::string str() const;   // "10.0.0.7:29500"
};

// The end of a wait.
class Deadline {
 public:
  using Clock = std::chrono::steady_clock;
  explicit Deadline(std::chrono::milliseconds timeout) : end_(Clock::now() + timeout) {}

  bool is_over() const { return Clock::now() >= end_; }
  std::chrono::milliseconds left() const;  // at least 0
  // The earlier of this deadline and now + timeout.
  Deadline within(std::chrono::milliseconds timeout) const;
  // Polls for these events until the deadline; true if the socket became ready.
  bool wait(int descriptor, int16_t events) const;

 private:
  Clock::time_point end_;
};

// The addresses of a name. Throws CommError.
std::vector<Address> resolve(const std::string& name, int port);
// The two ends of a connection.
Address own_address(int descriptor);
Address peer_address(int descriptor);
// The same; family 0 if the peer is gone.
Address peer_if_there(int descriptor);
// Parses an address: "10.0.0.7", "::1". Throws CommError.
Address numeric_address(const std::string& host, int port);

// All addresses of this host, at a port.
Address any_address(int port);
// True for names that mean the local host on every host (localhost, 127.0.0.1, ::1).
bool is_local_name(const std::string& name);
// The listening addresses of rank 0, or host 0: this host's addresses among those of `name`. If
// other hosts can reach none of them (`name` belongs to another machine, which forwards, or
// resolves to loopback, as a host's own name does on some systems), warns and returns all
// addresses.
std::vector<Address> own_addresses(const std::string& name, int port);

// This host's address for connections to the first reachable of these; port 0. Throws CommError.
Address address_towards(const std::vector<Address>& addresses);

// Listens at one address; port 0 takes a free one. Throws CommError.
Socket listen_at(const Address& address, int backlog);
std::vector<Socket> listen_at(const std::vector<Address>& addresses, int backlog);
// Accepts the next waiting connection; not open if there is none.
Socket accept_at(int listener);
// Starts a connection: it is established when the socket becomes writable. Not open, with errno, if
// it cannot start.
Socket begin_connection(Address address);
// A connection to the first address that answers before the deadline; not open, with errno, if none
// does.
Socket connect_once(const std::vector<Address>& addresses, const Deadline& deadline);

// Transfer a small record completely; false if the other side is gone or time is up.
bool read_all(int descriptor, void* data, size_t bytes, const Deadline& deadline);
bool write_all(int descriptor, const void* data, size_t bytes, const Deadline& deadline);

// Sets TCP_NODELAY and keep-alive: small records are sent immediately, middleboxes do not drop an
// idle connection, and a dead host is detected.
void keep_alive(int descriptor);

}  // namespace megatron::comm::tcp

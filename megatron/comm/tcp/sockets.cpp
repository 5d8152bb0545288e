#include "megatron/comm/tcp/sockets.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <netdb.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <memory>
#include <thread>

#include "megatron/core/error.h"

namespace megatron::comm::tcp {
namespace {

constexpr auto kOneConnection = std::chrono::seconds(10);  // to one address
constexpr int kNameAttempts = 10;

[[noreturn]] void fail(const std::string& what) {
  throw CommError(fmt::format("{}: {}", what, std::strerror(errno)));
}

void check(bool holds, const char* call) {
  if (!holds) fail(call);
}

sockaddr_in6& as_ipv6(sockaddr_storage& storage) {
  return reinterpret_cast<sockaddr_in6&>(storage);
}
sockaddr_in& as_ipv4(sockaddr_storage& storage) { return reinterpret_cast<sockaddr_in&>(storage); }

// A socket of IPv6 calls a peer of IPv4 ::ffff:10.0.0.1. Here it is 10.0.0.1 again.
Address plain(Address address) {
  if (address.storage.ss_family != AF_INET6) return address;
  const sockaddr_in6 mapped = as_ipv6(address.storage);
  if (IN6_IS_ADDR_V4MAPPED(&mapped.sin6_addr) == 0) return address;
  Address result;
  result.length = sizeof(sockaddr_in);
  sockaddr_in& ipv4 = as_ipv4(result.storage);
  ipv4.sin_family = AF_INET;
  ipv4.sin_port = mapped.sin6_port;
  std::memcpy(&ipv4.sin_addr, &mapped.sin6_addr.s6_addr[12], sizeof(ipv4.sin_addr));
  return result;
}

Address address_of(int descriptor, int (*ask)(int, sockaddr*, socklen_t*)) {
  Address address;
  address.length = sizeof(address.storage);
  check(ask(descriptor, address.get(), &address.length) == 0, "address of a socket");
  return plain(address);
}

Socket listen_at(sa_family_t family, int port, int backlog) {
  Socket listener(::socket(family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!listener.is_open()) return listener;
  Address any;
  any.storage.ss_family = family;
  any.length = family == AF_INET6 ? sizeof(sockaddr_in6) : sizeof(sockaddr_in);
  any.port() = htons(static_cast<in_port_t>(port));
  const int yes = 1;
  const int no = 0;
  ::setsockopt(listener.get(), SOL_SOCKET, SO_REUSEADDR, &yes, sizeof(yes));
  if (family == AF_INET6) {  // IPv4 comes here, too
    ::setsockopt(listener.get(), IPPROTO_IPV6, IPV6_V6ONLY, &no, sizeof(no));
  }
  if (::bind(listener.get(), any.get(), any.length) != 0 ||
      ::listen(listener.get(), backlog) != 0) {
    return Socket();
  }
  return listener;
}

Socket connect_to(Address address, const Deadline& deadline) {
  Socket socket(::socket(address.storage.ss_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!socket.is_open()) return socket;
  if (::connect(socket.get(), address.get(), address.length) == 0) return socket;
  if (errno != EINPROGRESS && errno != EINTR) return Socket();
  int error = ETIMEDOUT;
  if (deadline.wait(socket.get(), POLLOUT)) {
    socklen_t length = sizeof(error);
    check(::getsockopt(socket.get(), SOL_SOCKET, SO_ERROR, &error, &length) == 0, "getsockopt");
    if (error == 0) return socket;
  }
  socket = Socket();
  errno = error;
  return socket;
}

// Whether a call that does not block has to be made again.
bool is_early() { return errno == EINTR || errno == EAGAIN || errno == EWOULDBLOCK; }

}  // namespace

Socket::~Socket() {
  if (descriptor_ >= 0) ::close(descriptor_);
}

in_port_t& Address::port() {
  return storage.ss_family == AF_INET6 ? as_ipv6(storage).sin6_port : as_ipv4(storage).sin_port;
}

bool Address::is_loopback() const {
  Address copy = *this;
  if (storage.ss_family == AF_INET6) {
    return IN6_IS_ADDR_LOOPBACK(&as_ipv6(copy.storage).sin6_addr) != 0;
  }
  return ntohl(as_ipv4(copy.storage).sin_addr.s_addr) >> 24 == 127;
}

bool Address::is_own() const {
  Address copy = *this;
  copy.port() = 0;
  const Socket socket(::socket(storage.ss_family, SOCK_STREAM | SOCK_CLOEXEC, 0));
  return socket.is_open() && ::bind(socket.get(), copy.get(), copy.length) == 0;
}

std::chrono::milliseconds Deadline::left() const {
  const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(end_ - Clock::now());
  return std::max(left, std::chrono::milliseconds(0));
}

Deadline Deadline::within(std::chrono::milliseconds timeout) const {
  Deadline result(timeout);
  result.end_ = std::min(result.end_, end_);
  return result;
}

bool Deadline::wait(int descriptor, int16_t events) const {
  for (;;) {
    const int64_t ms = left().count();
    pollfd request{descriptor, events, 0};
    const int ready = ::poll(&request, 1, static_cast<int>(std::min<int64_t>(ms, 1000)));
    if (ready > 0) return true;
    if (ready < 0 && errno != EINTR) return false;
    if (ms == 0) return false;
  }
}

std::vector<Address> resolve(const std::string& name, int port) {
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* found = nullptr;
  int status = EAI_AGAIN;  // a name server may not have started yet
  for (int i = 0; i < kNameAttempts && status == EAI_AGAIN; ++i) {
    if (i > 0) std::this_thread::sleep_for(std::chrono::seconds(1));
    status = ::getaddrinfo(name.c_str(), std::to_string(port).c_str(), &hints, &found);
  }
  if (status != 0) {
    throw CommError(fmt::format(
        "the master's address {} is not known: {}; set MASTER_ADDR, or --master-addr of launch, to "
        "the name or address of the host of rank 0",
        name, ::gai_strerror(status)));
  }
  const std::unique_ptr<addrinfo, decltype(&::freeaddrinfo)> owner(found, ::freeaddrinfo);
  std::vector<Address> list;
  for (const addrinfo* each = found; each != nullptr; each = each->ai_next) {
    Address address;
    std::memcpy(&address.storage, each->ai_addr, each->ai_addrlen);
    address.length = each->ai_addrlen;
    list.push_back(address);
  }
  return list;
}

Address own_address(int descriptor) { return address_of(descriptor, ::getsockname); }
Address peer_address(int descriptor) { return address_of(descriptor, ::getpeername); }

Socket listen_at(int port, int backlog) {
  Socket listener = listen_at(AF_INET6, port, backlog);
  if (!listener.is_open()) listener = listen_at(AF_INET, port, backlog);  // a host without IPv6
  if (!listener.is_open()) {
    fail(
        fmt::format("port {} of this host cannot be opened (choose another MASTER_PORT, or "
                    "--master-port of launch)",
                    port));
  }
  return listener;
}

Socket accept_at(int listener) {
  return Socket(::accept4(listener, nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
}

Socket connect_once(const std::vector<Address>& addresses, const Deadline& deadline) {
  Socket socket;
  for (const Address& address : addresses) {
    socket = connect_to(address, deadline.within(kOneConnection));
    if (socket.is_open()) break;
  }
  return socket;
}

bool read_all(int descriptor, void* data, size_t bytes, const Deadline& deadline) {
  for (size_t got = 0; got < bytes;) {
    if (!deadline.wait(descriptor, POLLIN)) return false;
    const ssize_t count = ::recv(descriptor, static_cast<char*>(data) + got, bytes - got, 0);
    if (count < 0 && is_early()) continue;
    if (count <= 0) return false;
    got += static_cast<size_t>(count);
  }
  return true;
}

bool write_all(int descriptor, const void* data, size_t bytes, const Deadline& deadline) {
  for (size_t sent = 0; sent < bytes;) {
    if (!deadline.wait(descriptor, POLLOUT)) return false;
    const ssize_t count =
        ::send(descriptor, static_cast<const char*>(data) + sent, bytes - sent, MSG_NOSIGNAL);
    if (count < 0 && is_early()) continue;
    if (count <= 0) return false;
    sent += static_cast<size_t>(count);
  }
  return true;
}

void keep_alive(int descriptor) {
  const int yes = 1;
  const int first_s = 60;
  const int then_s = 30;
  const int times = 10;
  ::setsockopt(descriptor, IPPROTO_TCP, TCP_NODELAY, &yes, sizeof(yes));
  ::setsockopt(descriptor, SOL_SOCKET, SO_KEEPALIVE, &yes, sizeof(yes));
  ::setsockopt(descriptor, IPPROTO_TCP, TCP_KEEPIDLE, &first_s, sizeof(first_s));
  ::setsockopt(descriptor, IPPROTO_TCP, TCP_KEEPINTVL, &then_s, sizeof(then_s));
  ::setsockopt(descriptor, IPPROTO_TCP, TCP_KEEPCNT, &times, sizeof(times));
}

}  // namespace megatron::comm::tcp

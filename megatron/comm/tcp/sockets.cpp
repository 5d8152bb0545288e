#include "megatron/comm/tcp/sockets.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <netdb.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <memory>
#include <thread>

#include "megatron/core/error.h"
#include "megatron/core/log.h"

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

// An IPv6 socket shows an IPv4 peer as ::ffff:10.0.0.1. Turns it into 10.0.0.1.
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

Socket connect_to(const Address& address, const Deadline& deadline) {
  Socket socket = begin_connection(address);
  if (!socket.is_open()) return socket;
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

// Must a non-blocking call be repeated?
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

std::string Address::host() const {
  std::array<char, INET6_ADDRSTRLEN> text{};
  Address copy = *this;
  const void* const bytes = storage.ss_family == AF_INET6
                                ? static_cast<const void*>(&as_ipv6(copy.storage).sin6_addr)
                                : static_cast<const void*>(&as_ipv4(copy.storage).sin_addr);
  if (::inet_ntop(storage.ss_family, bytes, text.data(), text.size()) == nullptr) return "?";
  return text.data();
}

std::string Address::str() const {
  Address copy = *this;
  const bool is_ipv6 = storage.ss_family == AF_INET6;
  return fmt::format("{}{}{}:{}", is_ipv6 ? "[" : "", host(), is_ipv6 ? "]" : "",
                     ntohs(copy.port()));
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
    throw CommError(
        fmt::format("the master's address {} cannot be resolved: {}; set MASTER_ADDR, or "
                    "--master-addr of launch, to "
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

Address peer_if_there(int descriptor) {
  Address address;
  address.length = sizeof(address.storage);
  if (::getpeername(descriptor, address.get(), &address.length) != 0) return {};
  return plain(address);
}

Address numeric_address(const std::string& host, int port) {
  Address address;
  if (::inet_pton(AF_INET, host.c_str(), &as_ipv4(address.storage).sin_addr) == 1) {
    address.storage.ss_family = AF_INET;
    address.length = sizeof(sockaddr_in);
  } else if (::inet_pton(AF_INET6, host.c_str(), &as_ipv6(address.storage).sin6_addr) == 1) {
    address.storage.ss_family = AF_INET6;
    address.length = sizeof(sockaddr_in6);
  } else {
    throw CommError(fmt::format("{} is not an IPv4 or IPv6 address", host));
  }
  address.port() = htons(static_cast<in_port_t>(port));
  return address;
}

Address any_address(int port) {
  Address any;
  any.storage.ss_family = AF_INET6;
  any.length = sizeof(sockaddr_in6);
  any.port() = htons(static_cast<in_port_t>(port));
  if (any.is_own()) return any;
  any = {};  // a host without IPv6
  any.storage.ss_family = AF_INET;
  any.length = sizeof(sockaddr_in);
  any.port() = htons(static_cast<in_port_t>(port));
  return any;
}

bool is_local_name(const std::string& name) {
  return name == "localhost" || name == "::1" || name.starts_with("127.");
}

std::vector<Address> own_addresses(const std::string& name, int port) {
  std::vector<Address> addresses = resolve(name, port);
  std::erase_if(addresses, [](const Address& address) { return !address.is_own(); });
  const bool is_reachable =
      std::any_of(addresses.begin(), addresses.end(),
                  [](const Address& address) { return !address.is_loopback(); });
  if (is_reachable || (!addresses.empty() && is_local_name(name))) return addresses;
  warn(fmt::format(
      "{} {}: waiting for the others at all addresses of this host; set MASTER_ADDR, or "
      "--master-addr of launch, to its own address in the network of the job",
      name,
      addresses.empty() ? "is not an address of this host" : "is a loopback address on this host"));
  return {any_address(port)};
}

Address address_towards(const std::vector<Address>& addresses) {
  for (Address address : addresses) {
    // Connecting a datagram socket sends nothing; it only chooses the route.
    const Socket socket(::socket(address.storage.ss_family, SOCK_DGRAM | SOCK_CLOEXEC, 0));
    if (socket.is_open() && ::connect(socket.get(), address.get(), address.length) == 0) {
      Address own = own_address(socket.get());
      own.port() = 0;
      return own;
    }
  }
  fail("there is no route to the host of rank 0");
}

Socket listen_at(const Address& address, int backlog) {
  Address place = address;
  Socket listener(::socket(place.storage.ss_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  const int yes = 1;
  const int no = 0;
  ::setsockopt(listener.get(), SOL_SOCKET, SO_REUSEADDR, &yes, sizeof(yes));
  if (place.storage.ss_family == AF_INET6) {  // the any-address accepts IPv4, too
    ::setsockopt(listener.get(), IPPROTO_IPV6, IPV6_V6ONLY, &no, sizeof(no));
  }
  if (!listener.is_open() || ::bind(listener.get(), place.get(), place.length) != 0 ||
      ::listen(listener.get(), backlog) != 0) {
    fail(
        fmt::format("port {} of this host cannot be opened (at {}; choose another MASTER_PORT, or "
                    "--master-port of launch)",
                    ntohs(place.port()), place.str()));
  }
  return listener;
}

std::vector<Socket> listen_at(const std::vector<Address>& addresses, int backlog) {
  std::vector<Socket> listeners;
  listeners.reserve(addresses.size());
  for (const Address& address : addresses) listeners.push_back(listen_at(address, backlog));
  return listeners;
}

Socket accept_at(int listener) {
  return Socket(::accept4(listener, nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
}

Socket begin_connection(Address address) {
  Socket socket(::socket(address.storage.ss_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!socket.is_open()) return socket;
  if (::connect(socket.get(), address.get(), address.length) == 0) return socket;
  return errno == EINPROGRESS || errno == EINTR ? std::move(socket) : Socket();
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

#include "megatron/comm/tcp/sockets.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <cstring>
#include <memory>
#include <span>
#include <string>
#include <thread>

#include "megatron/core/error.h"

namespace megatron::comm::tcp {
namespace {

using Clock = std::chrono::steady_clock;

constexpr uint64_t kMagic = 0x6d65676174726f6e;  // "megatron"
constexpr auto kRetry = std::chrono::milliseconds(50);

struct Address {
  sockaddr_storage storage{};
  socklen_t length = 0;

  sockaddr* get() { return reinterpret_cast<sockaddr*>(&storage); }
  in_port_t& port() {
    return storage.ss_family == AF_INET6 ? reinterpret_cast<sockaddr_in6&>(storage).sin6_port
                                         : reinterpret_cast<sockaddr_in&>(storage).sin_port;
  }
  bool is_loopback() {
    if (storage.ss_family == AF_INET6) {
      return IN6_IS_ADDR_LOOPBACK(&reinterpret_cast<sockaddr_in6&>(storage).sin6_addr) != 0;
    }
    return ntohl(reinterpret_cast<sockaddr_in&>(storage).sin_addr.s_addr) >> 24 == 127;
  }
};

// What a process says first on a connection.
struct Hello {
  uint64_t magic = kMagic;
  int32_t rank = 0;
  int32_t size = 0;
  in_port_t port = 0;  // where it waits for others, as in an address
};

[[noreturn]] void fail(const std::string& what) {
  throw CommError(fmt::format("{}: {}", what, std::strerror(errno)));
}

void check(bool holds, const char* call) {
  if (!holds) fail(call);
}

Address address_of(int descriptor, int (*ask)(int, sockaddr*, socklen_t*)) {
  Address address;
  address.length = sizeof(address.storage);
  check(ask(descriptor, address.get(), &address.length) == 0, "address of a socket");
  return address;
}

// Reads or writes all of a small record within the time there is.
class Deadline {
 public:
  explicit Deadline(std::chrono::milliseconds timeout) : end_(Clock::now() + timeout) {}

  // Whether the socket becomes ready in time.
  bool wait(int descriptor, int16_t events) const {
    for (;;) {
      const auto left =
          std::chrono::duration_cast<std::chrono::milliseconds>(end_ - Clock::now()).count();
      if (left <= 0) return false;
      pollfd request{descriptor, events, 0};
      const int ready = ::poll(&request, 1, static_cast<int>(std::min<int64_t>(left, 1000)));
      if (ready > 0) return true;
      if (ready < 0 && errno != EINTR) return false;
    }
  }
  bool is_over() const { return Clock::now() >= end_; }

 private:
  Clock::time_point end_;
};

bool read_all(int descriptor, void* data, size_t bytes, const Deadline& deadline) {
  for (size_t got = 0; got < bytes;) {
    if (!deadline.wait(descriptor, POLLIN)) return false;
    const ssize_t count = ::recv(descriptor, static_cast<char*>(data) + got, bytes - got, 0);
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
    if (count <= 0) return false;
    sent += static_cast<size_t>(count);
  }
  return true;
}

// The addresses that a name stands for.
std::vector<Address> resolve(const std::string& name, int port) {
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* found = nullptr;
  const int status = ::getaddrinfo(name.c_str(), std::to_string(port).c_str(), &hints, &found);
  if (status != 0) {
    throw CommError(
        fmt::format("MASTER_ADDR {} is not known: {}; set it to the name or address of "
                    "the host of rank 0",
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

// Waits for connections at a port of all of this host's addresses; 0 takes a free one.
Socket listen_at(sa_family_t family, in_port_t port, int backlog) {
  Address any;
  any.storage.ss_family = family;
  any.length = family == AF_INET6 ? sizeof(sockaddr_in6) : sizeof(sockaddr_in);
  any.port() = port;
  Socket listener(::socket(family, SOCK_STREAM | SOCK_CLOEXEC, 0));
  check(listener.is_open(), "socket");
  const int yes = 1;
  ::setsockopt(listener.get(), SOL_SOCKET, SO_REUSEADDR, &yes, sizeof(yes));
  if (::bind(listener.get(), any.get(), any.length) != 0) {
    fail(fmt::format("port {} cannot be opened; choose another MASTER_PORT", ntohs(port)));
  }
  check(::listen(listener.get(), backlog) == 0, "listen");
  return listener;
}

// Connects to the first address that answers, and says who this is.
Socket connect_to(std::span<Address> addresses, const Hello& hello, const std::string& name,
                  const Deadline& deadline) {
  do {
    for (Address& address : addresses) {
      Socket socket(::socket(address.storage.ss_family, SOCK_STREAM | SOCK_CLOEXEC, 0));
      check(socket.is_open(), "socket");
      if (::connect(socket.get(), address.get(), address.length) == 0 &&
          write_all(socket.get(), &hello, sizeof(hello), deadline)) {
        return socket;
      }
    }
    std::this_thread::sleep_for(kRetry);  // it may not have started yet
  } while (!deadline.is_over());
  fail(fmt::format("rank {} of the world cannot connect to {}", hello.rank, name));
}

// Accepts all ranks above this one, each of which says hello; `ports` are what they say.
void accept_all(int listener, int own_rank, std::vector<Socket>& sockets,
                std::vector<in_port_t>& ports, const Deadline& deadline) {
  const int size = static_cast<int>(sockets.size());
  for (int missing = size - 1 - own_rank; missing > 0;) {
    if (!deadline.wait(listener, POLLIN)) {
      std::string names;
      for (int rank = own_rank + 1; rank < size; ++rank) {
        if (!sockets[static_cast<size_t>(rank)].is_open()) names += " " + std::to_string(rank);
      }
      throw CommError(fmt::format(
          "rank {} of the world waited in vain for these ranks to connect:{}", own_rank, names));
    }
    Socket socket(::accept4(listener, nullptr, nullptr, SOCK_CLOEXEC));
    Hello hello;
    if (!socket.is_open() || !read_all(socket.get(), &hello, sizeof(hello), deadline) ||
        hello.magic != kMagic) {
      continue;  // not one of us
    }
    if (hello.size != size || hello.rank <= own_rank || hello.rank >= size ||
        sockets[static_cast<size_t>(hello.rank)].is_open()) {
      throw CommError(
          fmt::format("a process says that it is rank {} of {}, and rank {} of {} knows "
                      "better; start all with the same WORLD_SIZE and each with its RANK",
                      hello.rank, hello.size, own_rank, size));
    }
    ports[static_cast<size_t>(hello.rank)] = hello.port;
    sockets[static_cast<size_t>(hello.rank)] = std::move(socket);
    --missing;
  }
}

void prepare(int descriptor) {
  const int yes = 1;
  ::setsockopt(descriptor, IPPROTO_TCP, TCP_NODELAY, &yes, sizeof(yes));
  check(::fcntl(descriptor, F_SETFL, ::fcntl(descriptor, F_GETFL) | O_NONBLOCK) == 0, "fcntl");
}

}  // namespace

Socket::~Socket() {
  if (descriptor_ >= 0) ::close(descriptor_);
}

std::vector<Socket> connect_all(const LaunchEnvironment& place, std::chrono::milliseconds timeout) {
  const Deadline deadline(timeout);
  const size_t size = static_cast<size_t>(place.size);
  std::vector<Socket> sockets(size);
  std::vector<in_port_t> ports(size);
  std::vector<Address> table(size);
  const std::string master = fmt::format("{}:{}", place.master_address, place.master_port);
  std::vector<Address> masters = resolve(place.master_address, place.master_port);
  if (place.rank == 0) {
    const Socket listener = listen_at(masters[0].storage.ss_family, masters[0].port(), place.size);
    accept_all(listener.get(), 0, sockets, ports, deadline);
    for (size_t rank = 1; rank < size; ++rank) {
      table[rank] = address_of(sockets[rank].get(), ::getpeername);
      table[rank].port() = ports[rank];
    }
    for (size_t rank = 1; rank < size; ++rank) {
      check(write_all(sockets[rank].get(), table.data(), size * sizeof(Address), deadline),
            "telling a rank of the others");
    }
  } else {
    const Socket listener = listen_at(masters[0].storage.ss_family, 0, place.size);
    const Hello hello{.rank = place.rank,
                      .size = place.size,
                      .port = address_of(listener.get(), ::getsockname).port()};
    sockets[0] = connect_to(masters, hello, "rank 0 at " + master, deadline);
    if (!read_all(sockets[0].get(), table.data(), size * sizeof(Address), deadline)) {
      throw CommError(
          fmt::format("rank {} of the world waited in vain for rank 0 at {} to tell of "
                      "the others",
                      place.rank, master));
    }
    for (size_t rank = 1; rank < static_cast<size_t>(place.rank); ++rank) {
      // A rank that rank 0 sees as its own host's is where this one sees rank 0.
      if (table[rank].is_loopback()) {
        const in_port_t port = table[rank].port();
        table[rank] = address_of(sockets[0].get(), ::getpeername);
        table[rank].port() = port;
      }
      sockets[rank] = connect_to({&table[rank], 1}, hello, fmt::format("rank {}", rank), deadline);
    }
    accept_all(listener.get(), place.rank, sockets, ports, deadline);
  }
  for (const Socket& socket : sockets) {
    if (socket.is_open()) prepare(socket.get());
  }
  return sockets;
}

}  // namespace megatron::comm::tcp

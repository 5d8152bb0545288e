#include "megatron/comm/tcp/rendezvous.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <poll.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <string>
#include <thread>

#include "megatron/core/build_id.h"
#include "megatron/core/error.h"
#include "megatron/core/log.h"

namespace megatron::comm::tcp {
namespace {

// "megatron" and the version of what follows.
constexpr uint64_t kMagic = 0x6d65676174726f6e + 2;
constexpr auto kRetry = std::chrono::milliseconds(50);
constexpr auto kUntilNotice = std::chrono::seconds(10);
constexpr auto kForOthers = std::chrono::seconds(1);  // to come and be told what is wrong
constexpr int kMaxListed = 8;
constexpr int kMinBacklog = 128;
constexpr rlim_t kOtherFiles = 256;

// What a process says first on a connection.
struct Hello {
  uint64_t magic = kMagic;
  int32_t rank = 0;
  int32_t size = 0;
  in_port_t port = 0;  // where it waits for others, as in an address
  std::array<char, 46> build{};
  std::array<char, 64> host{};

  std::string name() const { return fmt::format("rank {} on {}", rank, host.data()); }
};

// Where a process waits for others.
struct Door {
  uint16_t family = 0;  // 4 or 6
  in_port_t port = 0;   // as it travels
  std::array<uint8_t, 16> bytes{};
};

// What rank 0 answers, before either a Door for each rank below the asking one, or a text.
struct Answer {
  int32_t text_bytes = 0;
};

template <size_t N>
void copy_text(std::array<char, N>& to, const std::string& text) {
  text.copy(to.data(), N - 1);
}

Door door_of(Address address) {
  Door door{.family = 4, .port = address.port()};
  if (address.storage.ss_family == AF_INET6) {
    door.family = 6;
    std::memcpy(door.bytes.data(), &reinterpret_cast<sockaddr_in6&>(address.storage).sin6_addr, 16);
  } else {
    std::memcpy(door.bytes.data(), &reinterpret_cast<sockaddr_in&>(address.storage).sin_addr, 4);
  }
  return door;
}

Address address_of(const Door& door) {
  Address address;
  if (door.family == 6) {
    auto& ipv6 = reinterpret_cast<sockaddr_in6&>(address.storage);
    address.length = sizeof(ipv6);
    ipv6.sin6_family = AF_INET6;
    std::memcpy(&ipv6.sin6_addr, door.bytes.data(), 16);
  } else {
    auto& ipv4 = reinterpret_cast<sockaddr_in&>(address.storage);
    address.length = sizeof(ipv4);
    ipv4.sin_family = AF_INET;
    std::memcpy(&ipv4.sin_addr, door.bytes.data(), 4);
  }
  address.port() = door.port;
  return address;
}

// A socket for each of `size` ranks, and some files.
void expect_enough_files(int size) {
  rlimit limit{};
  if (::getrlimit(RLIMIT_NOFILE, &limit) != 0) return;
  const rlim_t needed = static_cast<rlim_t>(size) + kOtherFiles;
  if (limit.rlim_cur >= needed) return;
  limit.rlim_cur = std::min(needed, limit.rlim_max);
  ::setrlimit(RLIMIT_NOFILE, &limit);
  if (limit.rlim_max < needed) {
    throw CommError(fmt::format(
        "{} ranks need {} open files in each process, the limit is {}; raise it (ulimit "
        "-Hn), or start the ranks by mpirun",
        size, needed, limit.rlim_max));
  }
}

// Collects the processes above a rank.
class Gathering {
 public:
  Gathering(const Hello& own, int listener, std::vector<Socket>& sockets)
      : own_(own), listener_(listener), sockets_(sockets), hellos_(sockets.size()) {}

  // Until all are there, or a moment after something was found to be wrong.
  void run(Deadline deadline) {
    const Deadline notice(kUntilNotice);
    bool is_noticed = own_.rank != 0;
    bool is_wrong = false;
    while (!is_complete() && !deadline.is_over()) {
      wait(deadline);
      greet();
      if (!is_wrong && !problems_.empty()) {
        is_wrong = true;
        deadline = deadline.within(kForOthers);
      }
      if (!is_noticed && notice.is_over()) {
        is_noticed = true;
        warn(fmt::format("rank 0 has waited {} s for these ranks to connect: {}",
                         kUntilNotice.count(), missing()));
      }
    }
  }

  bool is_complete() const { return num_missing() == 0 && problems_.empty(); }
  const std::vector<std::string>& problems() const { return problems_; }
  const Hello& hello(size_t rank) const { return hellos_[rank]; }
  // Those who came and have no place.
  const std::vector<Socket>& refused() const { return refused_; }
  // "2, 3, .."
  std::string missing() const {
    std::vector<std::string> names;
    for (size_t rank = first(); rank < sockets_.size(); ++rank) {
      if (sockets_[rank].is_open()) continue;
      if (names.size() == kMaxListed) {
        names.push_back(fmt::format("and {} more", num_missing() - kMaxListed));
        break;
      }
      names.push_back(std::to_string(rank));
    }
    return fmt::format("{}", fmt::join(names, ", "));
  }

 private:
  struct Guest {  // one who has not said all of its hello
    Socket socket;
    Hello hello;
    size_t num_bytes = 0;
  };

  size_t first() const { return static_cast<size_t>(own_.rank) + 1; }
  int64_t num_missing() const {
    return std::count_if(sockets_.begin() + static_cast<int64_t>(first()), sockets_.end(),
                         [](const Socket& socket) { return !socket.is_open(); });
  }
  void wait(const Deadline& deadline) {
    std::vector<pollfd> requests = {{listener_, POLLIN, 0}};
    for (const Guest& guest : guests_) requests.push_back({guest.socket.get(), POLLIN, 0});
    ::poll(requests.data(), requests.size(),
           static_cast<int>(std::min<int64_t>(deadline.left().count(), 100)));
  }
  // Takes in who came and what they say.
  void greet() {
    for (;;) {
      Socket socket = accept_at(listener_);
      if (!socket.is_open()) break;
      guests_.push_back({std::move(socket), {}, 0});
    }
    std::erase_if(guests_, [&](Guest& guest) {
      auto* const bytes = reinterpret_cast<char*>(&guest.hello);
      const ssize_t count =
          ::recv(guest.socket.get(), bytes + guest.num_bytes, sizeof(Hello) - guest.num_bytes, 0);
      if (count < 0) return errno != EAGAIN && errno != EWOULDBLOCK && errno != EINTR;
      guest.num_bytes += static_cast<size_t>(count);
      if (guest.num_bytes < sizeof(Hello)) return count == 0;
      if (guest.hello.magic == kMagic) admit(std::move(guest));
      return true;  // admitted, or none of us
    });
  }
  void admit(Guest guest) {
    Hello& hello = guest.hello;
    hello.build.back() = hello.host.back() = 0;
    const size_t num_problems = problems_.size();
    const auto place = static_cast<size_t>(hello.rank);
    const bool is_of_size = hello.size == own_.size;
    if (!is_of_size) {
      problems_.push_back(
          fmt::format("{} is one of {} ranks, {} of {}; start all with the same number of ranks",
                      hello.name(), hello.size, own_.name(), own_.size));
    } else if (hello.rank < 0 || hello.rank >= hello.size ||
               (own_.rank > 0 && hello.rank <= own_.rank)) {
      problems_.push_back(
          fmt::format("{} is none of the ranks that {} waits for; give each process "
                      "its own RANK",
                      hello.name(), own_.name()));
    } else if (hello.rank == own_.rank || sockets_[place].is_open()) {
      const Hello& other = hello.rank == own_.rank ? own_ : hellos_[place];
      problems_.push_back(
          fmt::format("there are two of rank {}, on {} and on {}; give each process its own RANK "
                      "(each host its own --node-rank)",
                      hello.rank, other.host.data(), hello.host.data()));
    }
    if (hello.build != own_.build) {
      problems_.push_back(
          fmt::format("{} runs another build of the program ({:.8}) than {} ({:.8}); install the "
                      "same on all hosts",
                      hello.name(), hello.build.data(), own_.name(), own_.build.data()));
    }
    if (problems_.size() > num_problems) {
      refused_.push_back(std::move(guest.socket));
      return;
    }
    hellos_[place] = hello;
    sockets_[place] = std::move(guest.socket);
  }

  const Hello own_;
  const int listener_;
  std::vector<Socket>& sockets_;
  std::vector<Hello> hellos_;
  std::vector<Guest> guests_;
  std::vector<Socket> refused_;
  std::vector<std::string> problems_;
};

// At most some of the problems: thousands of ranks may have the same one.
std::vector<std::string> listed(std::vector<std::string> problems) {
  const size_t count = problems.size();
  if (count <= kMaxListed) return problems;
  problems.resize(kMaxListed);
  problems.push_back(fmt::format("and {} more of the kind", count - kMaxListed));
  return problems;
}

// Rank 0: waits for all others and answers them.
void receive_all(const LaunchEnvironment& place, const Hello& own, std::vector<Socket>& sockets,
                 const Deadline& deadline) {
  const Socket listener = listen_at(place.master_port, std::max(place.size, kMinBacklog));
  Gathering gathering(own, listener.get(), sockets);
  gathering.run(deadline);
  if (!gathering.problems().empty()) {
    const std::vector<std::string> problems = listed(gathering.problems());
    const std::string text = fmt::format("{}", fmt::join(problems, "\n"));
    const Answer answer{static_cast<int32_t>(text.size())};
    const auto refuse = [&](const std::vector<Socket>& asking) {
      for (const Socket& socket : asking) {
        if (!socket.is_open()) continue;
        const Deadline soon(kForOthers);
        if (write_all(socket.get(), &answer, sizeof(answer), soon)) {
          write_all(socket.get(), text.data(), text.size(), soon);
        }
      }
    };
    refuse(sockets);
    refuse(gathering.refused());
    throw ConfigError(problems);
  }
  if (!gathering.is_complete()) {
    throw CommError(
        fmt::format("rank 0 of the world waited in vain at port {} for these ranks to connect: {}; "
                    "were they started, and can their hosts reach {}?",
                    place.master_port, gathering.missing(), place.master_address));
  }
  std::vector<Door> doors(sockets.size());
  for (size_t rank = 1; rank < sockets.size(); ++rank) {
    doors[rank] = door_of(peer_address(sockets[rank].get()));
    doors[rank].port = gathering.hello(rank).port;
  }
  for (size_t rank = 1; rank < sockets.size(); ++rank) {
    const Answer answer;
    if (!write_all(sockets[rank].get(), &answer, sizeof(answer), deadline) ||
        !write_all(sockets[rank].get(), doors.data(), rank * sizeof(Door), deadline)) {
      throw CommError(fmt::format("rank 0 of the world cannot tell {} of the others: {}",
                                  gathering.hello(rank).name(), std::strerror(errno)));
    }
  }
}

// Connects to another rank, which may not have started yet, and says hello.
Socket greet(const std::vector<Address>& addresses, const Hello& own, const std::string& name,
             const std::string& remedy, const Deadline& deadline) {
  const Deadline notice(kUntilNotice);
  bool is_noticed = own.rank > 1;  // one of them is enough
  for (;;) {
    Socket socket = connect_once(addresses, deadline);
    if (socket.is_open() && write_all(socket.get(), &own, sizeof(own), deadline)) return socket;
    const std::string reason = std::strerror(errno);
    if (deadline.is_over()) {
      throw CommError(
          fmt::format("{} cannot connect to {}: {}; {}", own.name(), name, reason, remedy));
    }
    if (!is_noticed && notice.is_over()) {
      is_noticed = true;
      warn(fmt::format("{} has tried for {} s to connect to {}: {}; {}", own.name(),
                       kUntilNotice.count(), name, reason, remedy));
    }
    std::this_thread::sleep_for(kRetry);
  }
}

// What rank 0 answers: where the ranks below this one wait.
std::vector<Door> answer_of(int rank_0, const Hello& own, const std::string& master,
                            const Deadline& deadline) {
  Answer answer;
  std::vector<Door> doors(static_cast<size_t>(own.rank));
  std::string text;
  bool is_read = read_all(rank_0, &answer, sizeof(answer), deadline);
  if (is_read && answer.text_bytes > 0) {
    text.resize(static_cast<size_t>(std::min(answer.text_bytes, 1 << 20)));
    is_read = read_all(rank_0, text.data(), text.size(), deadline);
  } else if (is_read) {
    is_read = read_all(rank_0, doors.data(), doors.size() * sizeof(Door), deadline);
  }
  if (!is_read) {
    throw CommError(
        fmt::format("{} waited in vain for {} to tell of the others; what does rank 0 say?",
                    own.name(), master));
  }
  if (!text.empty()) throw CommError(fmt::format("{} was refused by rank 0: {}", own.name(), text));
  return doors;
}

// Any other rank: asks rank 0 where those below it wait, connects to them, and waits for the rest.
void join(const LaunchEnvironment& place, Hello own, std::vector<Socket>& sockets,
          const Deadline& deadline) {
  const std::string master =
      fmt::format("rank 0 at {}:{}", place.master_address, place.master_port);
  const Socket listener = listen_at(0, std::max(place.size, kMinBacklog));
  own.port = own_address(listener.get()).port();
  sockets[0] = greet(resolve(place.master_address, place.master_port), own, master,
                     "was rank 0 started on that host, and can it be reached from here?", deadline);
  const std::vector<Door> doors = answer_of(sockets[0].get(), own, master, deadline);
  for (size_t rank = 1; rank < doors.size(); ++rank) {
    Address address = address_of(doors[rank]);
    // A rank that rank 0 sees as its own host's is where this one sees rank 0.
    if (address.is_loopback()) {
      address = peer_address(sockets[0].get());
      address.port() = doors[rank].port;
    }
    sockets[rank] = greet({address}, own, fmt::format("rank {}", rank),
                          "the hosts must reach each other at all ports", deadline);
  }
  Gathering gathering(own, listener.get(), sockets);
  gathering.run(deadline);
  if (!gathering.is_complete()) {
    throw CommError(
        fmt::format("{} waited in vain for these ranks to connect: {}; the hosts must "
                    "reach each other at all ports",
                    own.name(), gathering.missing()));
  }
}

}  // namespace

std::vector<Socket> connect_all(const LaunchEnvironment& place, std::chrono::milliseconds timeout) {
  const Deadline deadline(timeout);
  expect_enough_files(place.size);
  std::vector<Socket> sockets(static_cast<size_t>(place.size));
  Hello own;
  own.rank = place.rank;
  own.size = place.size;
  copy_text(own.build, build_id());
  ::gethostname(own.host.data(), own.host.size() - 1);
  if (place.rank == 0) {
    receive_all(place, own, sockets, deadline);
  } else {
    join(place, own, sockets, deadline);
  }
  for (const Socket& socket : sockets) {
    if (socket.is_open()) keep_alive(socket.get());
  }
  return sockets;
}

}  // namespace megatron::comm::tcp

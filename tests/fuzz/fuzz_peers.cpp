// Talks to the network code as a hostile peer does: usage: fuzz_peers SECONDS [SEED]
//
// Strangers connect and send damaged greetings; peers that know the secret send damaged hellos,
// news, outcomes, headers and bodies. Each conversation must end with an Error or in good order:
// anything else (a signal, another exception, memory beyond the limit, no end) is a failure. Build
// it with MG_SANITIZE=address,undefined to see reads beyond buffers too.
#include <fmt/format.h>
#include <poll.h>
#include <sys/resource.h>
#include <sys/socket.h>

#include <array>
#include <atomic>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "megatron/comm/collectives.h"
#include "megatron/comm/messages/message_transport.h"
#include "megatron/comm/tcp/pending_connections.h"
#include "megatron/comm/tcp/record.h"
#include "megatron/comm/tcp/rendezvous.h"
#include "megatron/core/error.h"
#include "tests/comm/simulated_wire.h"
#include "tests/fuzz/mutator.h"
#include "tests/support/sanitizers.h"

namespace megatron::comm {
namespace {

using Clock = std::chrono::steady_clock;
using tcp::Channel;
using tcp::Purpose;

const Secret kSecret("a secret of thirty-two characters");

struct Counts {
  int64_t conversations = 0;
  int64_t messages = 0;
  int64_t refused = 0;
  int64_t accepted = 0;
};

struct Pair {
  tcp::Socket caller;
  tcp::Socket listener;
};
Pair connected() {
  std::array<int, 2> ends{};
  if (::socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, ends.data()) != 0) {
    std::abort();
  }
  return {tcp::Socket(ends[0]), tcp::Socket(ends[1])};
}

void say(int socket, const std::string& text) {
  static_cast<void>(::send(socket, text.data(), text.size(), MSG_NOSIGNAL));
}

// A stranger, against a Channel at either end.
void talk_as_stranger(Mutator& mutator, Counts& counts) {
  Pair pair = connected();
  const bool is_caller = mutator.below(2) == 0;
  Channel channel(std::move(is_caller ? pair.caller : pair.listener),
                  is_caller ? Channel::End::kCaller : Channel::End::kListener, Purpose::kRanks,
                  kSecret);
  channel.send("a record");
  const int end = (is_caller ? pair.listener : pair.caller).get();
  std::string greeting = "megatron";
  greeting += '\3';
  greeting += static_cast<char>(Purpose::kRanks);
  greeting += std::string(6, '\0') + mutator.noise(32 + 32);
  for (uint64_t i = 1 + mutator.below(4); i > 0; --i) {
    say(end, mutator.mutated(mutator.below(4) == 0 ? mutator.noise(mutator.below(300)) : greeting));
    channel.advance();
    ++counts.messages;
    if (channel.next()) throw InternalError("a stranger's record was taken");
    if (channel.state() == Channel::State::kOpen) throw InternalError("a stranger was let in");
  }
  ++(channel.state() == Channel::State::kGone ? counts.refused : counts.accepted);
}

// A channel whose other end has proved itself and says damaged records.
void talk_as_member(Mutator& mutator, Counts& counts) {
  Pair pair = connected();
  const int raw = pair.caller.get();
  Channel caller(std::move(pair.caller), Channel::End::kCaller, Purpose::kRanks, kSecret);
  Channel listener(std::move(pair.listener), Channel::End::kListener, Purpose::kRanks, kSecret);
  for (int i = 0; i < 4; ++i) {
    caller.advance();
    listener.advance();
  }
  if (listener.state() != Channel::State::kOpen) throw InternalError("a member was not let in");
  std::string record = mutator.noise(mutator.below(64));
  const auto size = static_cast<uint32_t>(record.size());
  record.insert(0, reinterpret_cast<const char*>(&size), sizeof(size));
  for (uint64_t i = 1 + mutator.below(8); i > 0; --i) {
    say(raw, mutator.mutated(record));
    ++counts.messages;
    listener.advance();
    while (const std::optional<std::string> got = listener.next()) {
      tcp::RecordReader reader(*got);
      for (uint64_t j = reader.count(8); j > 0; --j) reader.text();
      listener.advance();
    }
  }
  ++(listener.state() == Channel::State::kGone ? counts.refused : counts.accepted);
}

// A rendezvous at number 0, whose guests say damaged hellos.
void talk_to_rendezvous(Mutator& mutator, Counts& counts) {
  const tcp::Address loopback = tcp::numeric_address("127.0.0.1", 0);
  const int port = ntohs(tcp::own_address(tcp::listen_at(loopback, 1).get()).port());
  const tcp::RendezvousPoint place{.address = "127.0.0.1", .port = port, .count = 3};
  std::atomic<bool> is_over{false};
  std::thread host([&] {
    try {
      tcp::join_rendezvous(
          place, {.number = 0, .name = "rank 0", .settings = {}, .card = "1", .address = {}},
          kSecret, std::chrono::milliseconds(60));
      ++counts.accepted;
    } catch (const InternalError&) {
      std::abort();
    } catch (const Error&) {
      ++counts.refused;
    }
    is_over = true;
  });
  const std::vector<tcp::Address> door = {tcp::numeric_address("127.0.0.1", port)};
  tcp::RecordWriter hello;
  hello.number(1 + mutator.below(2));
  hello.text("rank 1");
  hello.text("card");
  hello.number(2);
  for (const char* const text : {"the build of the program", "x", "the number of ranks", "3"}) {
    hello.text(text);
  }
  while (!is_over) {
    tcp::Socket socket = tcp::connect_once(door, tcp::Deadline(std::chrono::milliseconds(5)));
    if (!socket.is_open()) continue;
    ++counts.messages;
    if (mutator.below(3) == 0) {
      say(socket.get(), mutator.noise(mutator.below(200)));
      continue;
    }
    Channel channel(std::move(socket), Channel::End::kCaller, Purpose::kRanks, kSecret);
    channel.send(mutator.mutated(hello.bytes()));
    for (int i = 0; i < 5 && channel.state() == Channel::State::kProving; ++i) {
      channel.advance();
      pollfd request{channel.descriptor(), channel.events(), 0};
      ::poll(&request, 1, 5);
    }
    channel.advance();
  }
  host.join();
}

// Messages whose headers lie, to a rank that receives and takes part in collectives.
void talk_as_rank(Mutator& mutator, Counts& counts) {
  SimulatedNet net(2);
  const auto context = std::make_shared<RankContext>();
  context->timeout = std::chrono::milliseconds(1);
  const auto router = std::make_shared<MessageRouter>(
      std::make_unique<SimulatedWire>(net, 0, std::chrono::milliseconds(1)), context,
      MessageRouter::ProgressThread::kNone);
  const Group world(std::make_shared<MessageTransport>(
      router, Membership{.name = "world", .rank = 0, .world_ranks = {0, 1}}, 0));
  std::vector<float> x(mutator.below(64));
  const TensorView view{x.data(), {static_cast<int64_t>(x.size())}, DType::kFloat32};
  const bool is_message = mutator.below(2) == 0;
  // This rank's messages reveal the number of the group.
  const Call call{is_message ? Operation::kSend : Operation::kAllReduce, DType::kFloat32,
                  static_cast<int64_t>(x.size()), Reduce::kSum, is_message ? 0 : -1};
  send(ConstView{x.data(), {static_cast<int64_t>(x.size())}, DType::kFloat32}, 1, world, Stream{});
  Header header = net.box(1).from[0].front().header;
  header.call = call;
  header.bytes = call.bytes();
  for (uint64_t i = 1 + mutator.below(4); i > 0; --i) {
    std::string bytes(reinterpret_cast<const char*>(&header), sizeof(header));
    bytes = mutator.mutated(bytes);
    bytes.resize(sizeof(header), '\0');
    SimulatedNet::Message message;
    std::memcpy(static_cast<void*>(&message.header), bytes.data(), sizeof(header));
    message.body.resize(mutator.below(2) == 0 ? static_cast<size_t>(header.bytes)
                                              : mutator.below(4096));
    net.deliver(1, 0, std::move(message));
    ++counts.messages;
  }
  try {
    if (is_message) {
      recv(view, 1, world, Stream{});
    } else {
      all_reduce(view, Reduce::kSum, world, Stream{});
    }
    ++counts.accepted;
  } catch (const InternalError&) {
    throw;
  } catch (const Error&) {
    ++counts.refused;
  }
}

int fuzz(double seconds, uint64_t seed) {
  Mutator mutator(seed);
  Counts counts;
  const auto start = Clock::now();
  const auto elapsed = [&] { return std::chrono::duration<double>(Clock::now() - start).count(); };
  while (elapsed() < seconds) {
    ++counts.conversations;
    try {
      const uint64_t which = mutator.below(1000);
      if (which == 0) {
        talk_to_rendezvous(mutator, counts);
      } else if (which < 400) {
        talk_as_stranger(mutator, counts);
      } else if (which < 700) {
        talk_as_member(mutator, counts);
      } else {
        talk_as_rank(mutator, counts);
      }
    } catch (const std::exception& error) {
      fmt::print("conversation {} of seed {}: {}\n", counts.conversations, seed, error.what());
      return 1;
    }
  }
  rusage usage{};
  ::getrusage(RUSAGE_SELF, &usage);
  fmt::print("{} conversations, {} messages, {} refused, {} taken, at most {} MiB; seed {}\n",
             counts.conversations, counts.messages, counts.refused, counts.accepted,
             usage.ru_maxrss / 1024, seed);
  return 0;
}

}  // namespace
}  // namespace megatron::comm

int main(int argc, char** argv) {
  const double seconds = argc > 1 ? std::atof(argv[1]) : 10.0;
  const uint64_t seed = argc > 2 ? std::strtoull(argv[2], nullptr, 10) : std::random_device()();
#if !MG_ADDRESS_SANITIZER
  const rlimit limit = {1 << 30, 1 << 30};  // no allocation comes near the absurd sizes
  ::setrlimit(RLIMIT_AS, &limit);
#endif
  // Ranks and meetings say what was wrong; here that is all the time.
  if (std::freopen("/dev/null", "w", stderr) == nullptr) return 1;
  return megatron::comm::fuzz(seconds, seed);
}

#include "megatron/comm/processes/process_group.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <fstream>
#include <optional>
#include <thread>
#include <utility>

#include "megatron/comm/spin_pause.h"
#include "megatron/core/error.h"

namespace megatron::comm {
namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::microseconds;

constexpr int64_t kPage = 4096;
constexpr size_t kTextBytes = 200;
using Text = std::array<char, kTextBytes>;

Text fixed(const std::string& text) {
  Text fixed{};
  std::copy_n(text.begin(), std::min(text.size(), kTextBytes - 1), fixed.begin());
  return fixed;
}

// Every member's text, by rank.
std::vector<std::string> texts_of_all(Transport& host, const std::string& own) {
  const Text mine = fixed(own);
  std::vector<Text> all(static_cast<size_t>(host.size()));
  host.run({Operation::kAllGather, DType::kUInt8, static_cast<int64_t>(kTextBytes)}, mine.data(),
           all.data());
  std::vector<std::string> texts;
  for (const Text& text : all) texts.emplace_back(text.data());
  return texts;
}

// Rank 0's text.
std::string text_of_first(Transport& host, const std::string& own) {
  return texts_of_all(host, own)[0];
}

// Differs on different machines, and on one machine before and after a start.
std::string name_of_host() {
  Text name{};
  ::gethostname(name.data(), name.size() - 1);
  std::string boot;
  std::ifstream("/proc/sys/kernel/random/boot_id") >> boot;
  return std::string(name.data()) + " " + boot;
}

}  // namespace

std::string first_problem(Transport& host, const std::string& own) {
  const std::vector<std::string> all = texts_of_all(host, own);
  const auto found = std::find_if(all.begin(), all.end(), [](const auto& t) { return !t.empty(); });
  if (found == all.end()) return {};
  return fmt::format("{}: {}", host.name_of(static_cast<int>(found - all.begin())), *found);
}

int64_t ProcessGroup::bytes_of(int size, int64_t extra_bytes) {
  return extra_bytes + size * static_cast<int64_t>(sizeof(Place)) +
         int64_t{size} * size * static_cast<int64_t>(sizeof(Mailbox));
}

ProcessGroup::Made ProcessGroup::make(Transport& host, int64_t extra_bytes) {
  const std::vector<std::string> hosts = texts_of_all(host, name_of_host());
  const auto other = std::find_if(hosts.begin(), hosts.end(),
                                  [&](const std::string& name) { return name != hosts[0]; });
  if (other != hosts.end()) return {nullptr, "members are on several hosts"};

  extra_bytes = (extra_bytes + kPage - 1) / kPage * kPage;
  const int64_t bytes = bytes_of(host.size(), extra_bytes);
  std::optional<SharedSegment> segment;
  std::string problem;
  const auto attempt = [&](const auto& f) {
    try {
      segment.emplace(f());
    } catch (const CommError& error) {
      problem = error.what();
    }
  };
  if (host.rank() == 0) attempt([&] { return SharedSegment::create(bytes); });
  const std::string name = text_of_first(host, segment ? segment->name() : "");
  if (host.rank() > 0 && !name.empty()) attempt([&] { return SharedSegment::open(name, bytes); });
  problem = first_problem(host, problem);
  if (!problem.empty()) return {nullptr, problem};
  segment->remove_name();
  return {std::unique_ptr<ProcessGroup>(
              new ProcessGroup(host, std::move(*segment), static_cast<size_t>(extra_bytes))),
          ""};
}

ProcessGroup::ProcessGroup(Transport& host, SharedSegment segment, size_t extra_bytes)
    : host_(host),
      segment_(std::move(segment)),
      extra_bytes_(extra_bytes),
      may_spin_(host.context().local_size <= static_cast<int>(std::thread::hardware_concurrency())),
      num_received_(static_cast<size_t>(host.size())) {}

// Objects of zeros, which the new segment has.
ProcessGroup::Place& ProcessGroup::place(int member) const {
  return reinterpret_cast<Place*>(segment_.data() + extra_bytes_)[member];
}

ProcessGroup::Mailbox& ProcessGroup::mailbox(int sender, int receiver) const {
  auto* const places = reinterpret_cast<Place*>(segment_.data() + extra_bytes_);
  return reinterpret_cast<Mailbox*>(places + host_.size())[sender * host_.size() + receiver];
}

void ProcessGroup::wait_until(const Call& call, const std::function<bool()>& happened,
                              const std::function<std::string()>& whom) const {
  const Clock::time_point begin = Clock::now();
  do {
    for (int i = 0; i < 8; ++i) {
      if (happened()) return;
      spin_pause();
    }
  } while (may_spin_ && Clock::now() - begin < spin_time_);
  while (!happened()) {
    const bool may_keep_waiting = host_.may_keep_waiting(begin);
    const auto fail = [&](const std::string& why) {
      throw CommError(
          fmt::format("{}: {} {}", host_.name_of(call), host_.name_of(host_.rank()), why));
    };
    if (const std::optional<std::string> others = host_.failure()) {
      fail("was released because " + *others);
    }
    if (!may_keep_waiting) {
      const std::string missing = whom();
      host_.print_flight_records();
      fail(fmt::format("waited {} s for {}",
                       static_cast<double>(host_.context().timeout.load().count()) / 1000,
                       missing));
    }
    const auto waited = std::chrono::duration_cast<microseconds>(Clock::now() - begin);
    std::this_thread::sleep_for(std::clamp(waited / 8, microseconds(20), microseconds(1000)));
  }
}

std::string ProcessGroup::name_and_call(int member) const {
  const uint64_t arrivals = place(member).arrivals.load(std::memory_order_acquire);
  return fmt::format("{} (last call in this group: {})", host_.name_of(member),
                     arrivals == 0 ? "none" : place(member).call.str());
}

void ProcessGroup::arrive(const Call& call) {
  std::atomic<uint64_t>& own = place(host_.rank()).arrivals;
  const uint64_t arrivals = own.load(std::memory_order_relaxed) + 1;
  own.store(arrivals, std::memory_order_release);
  int member = 0;  // all before it have arrived
  const auto is_over = [&] {
    while (member < host_.size() &&
           place(member).arrivals.load(std::memory_order_acquire) >= arrivals) {
      ++member;
    }
    return member == host_.size();
  };
  wait_until(call, is_over, [&] {
    std::string text;
    for (int i = 0; i < host_.size(); ++i) {
      if (place(i).arrivals.load(std::memory_order_acquire) >= arrivals) continue;
      text += (text.empty() ? "" : ", ") + name_and_call(i);
    }
    return text;
  });
}

void ProcessGroup::enter(const Call& call, std::span<const std::byte> part) {
  invariant(part.size() <= kPartBytes, "a member's part has its place");
  Place& own = place(host_.rank());
  own.call = call;
  std::copy(part.begin(), part.end(), own.part.begin());
  arrive(call);
  check_agreement();
}

void ProcessGroup::leave() { arrive(place(host_.rank()).call); }

void ProcessGroup::check_agreement() {
  int other = 0;
  while (other < host_.size() && place(other).call == place(0).call) ++other;
  if (other == host_.size()) return;
  const std::string message = fmt::format(
      "group {}: members made different calls: {} called {}, {} called {}", host_.membership().name,
      host_.name_of(0), place(0).call.str(), host_.name_of(other), place(other).call.str());
  leave();  // the others have now read this rank's call
  throw CommError(message);
}

uint64_t ProcessGroup::num_posted(int receiver) const {
  return mailbox(host_.rank(), receiver).num_posted.load(std::memory_order_relaxed);
}

bool ProcessGroup::is_taken(int receiver, uint64_t message) const {
  return mailbox(host_.rank(), receiver).num_taken.load(std::memory_order_acquire) > message;
}

void ProcessGroup::post(const Call& call, std::span<const std::byte> bytes) {
  invariant(bytes.size() <= kPartBytes, "a message has its place");
  Mailbox& box = mailbox(host_.rank(), call.peer);
  const uint64_t number = num_posted(call.peer);
  wait_until(
      call, [&] { return number - box.num_taken.load(std::memory_order_acquire) < kMessages; },
      [&] { return fmt::format("{} to receive", name_and_call(call.peer)); });
  Message& message = box.messages[number % kMessages];
  message.call = call;
  std::copy(bytes.begin(), bytes.end(), message.bytes.begin());
  box.num_posted.store(number + 1, std::memory_order_release);
}

uint64_t ProcessGroup::receive(const Call& call, std::span<std::byte> bytes) {
  invariant(bytes.size() <= kPartBytes, "a message has its place");
  Mailbox& box = mailbox(call.peer, host_.rank());
  const uint64_t number = num_received_[static_cast<size_t>(call.peer)];
  wait_until(
      call, [&] { return box.num_posted.load(std::memory_order_acquire) > number; },
      [&] { return name_and_call(call.peer); });
  const Message& message = box.messages[number % kMessages];
  if (message.call.count != call.count || message.call.dtype != call.dtype) {
    throw CommError(fmt::format("{}: {} expects a message that {} did not send: {}",
                                host_.name_of(call), host_.name_of(host_.rank()),
                                host_.name_of(call.peer), message.call.str()));
  }
  std::copy_n(message.bytes.begin(), bytes.size(), bytes.begin());
  num_received_[static_cast<size_t>(call.peer)] = number + 1;
  return number;
}

void ProcessGroup::take(int sender) {
  mailbox(sender, host_.rank())
      .num_taken.store(num_received_[static_cast<size_t>(sender)], std::memory_order_release);
}

}  // namespace megatron::comm

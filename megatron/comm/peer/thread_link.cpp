#include <fmt/format.h>

#include <atomic>
#include <chrono>
#include <deque>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "megatron/comm/peer/event.h"
#include "megatron/comm/peer/link.h"
#include "megatron/comm/threads/thread_group.h"
#include "megatron/core/error.h"

namespace megatron::comm::peer {
namespace {

using Clock = std::chrono::steady_clock;

constexpr auto kThreadSpinTime = std::chrono::milliseconds(1);

// A message to one receiver, which reads it between receiving its address and marking it taken.
struct Ticket {
  Ticket(int sender, int receiver) : done(receiver), ready(sender) {}

  const void* data = nullptr;
  PeerEvent done;                    // the receiver has read the data
  PeerEvent ready;                   // the data is complete
  std::atomic<bool> is_taken{true};  // `done` is recorded
};

// The part of a member's state that others see. Lives as long as any of them.
struct Board {
  explicit Board(int gpu) : device(gpu), ready(gpu), middle(gpu), done(gpu) {}

  cudaEvent_t event(Mark mark) const {
    return (mark == Mark::kReady ? ready : mark == Mark::kMiddle ? middle : done).get();
  }

  const int device;
  PeerEvent ready;
  PeerEvent middle;
  PeerEvent done;
  std::deque<Ticket> tickets;  // only the member itself adds to them
};
using Boards = std::vector<std::shared_ptr<Board>>;

// The boards of all members.
Boards shown_to_all(Transport& host, int device) {
  ThreadGroup& group = *host.threads();
  const std::shared_ptr<Board> mine = std::make_shared<Board>(device);
  group.enter(host, {Operation::kConnect}, &mine, nullptr);
  Boards boards;
  for (const ThreadGroup::Place& place : group.places()) {
    boards.push_back(*static_cast<const std::shared_ptr<Board>*>(place.in));
  }
  group.leave(host.rank());
  return boards;
}

bool can_access_each_other(const Boards& boards) {
  for (const auto& a : boards) {
    for (const auto& b : boards) {
      if (a->device == b->device) continue;
      int can = 0;
      MG_CUDA(cudaDeviceCanAccessPeer(&can, a->device, b->device));
      if (can == 0) return false;
    }
  }
  return true;
}

void open_access(int device, const Boards& boards) {
  MG_CUDA(cudaSetDevice(device));
  for (const auto& board : boards) {
    if (board->device == device) continue;
    const cudaError_t status = cudaDeviceEnablePeerAccess(board->device, 0);
    if (status == cudaErrorPeerAccessAlreadyEnabled) {
      cudaGetLastError();
    } else {
      megatron::cuda::check(status, "cudaDeviceEnablePeerAccess", __FILE__, __LINE__);
    }
  }
}

// Streams wait for events. One of each kind is enough for a member: it is recorded again only after
// all members have queued their waits for its last use.
class ThreadLink final : public Link {
 public:
  ThreadLink(Transport& host, Boards boards)
      : host_(host), group_(*host.threads()), boards_(std::move(boards)), idle_(boards_.size()) {
    group_.spin_for(kThreadSpinTime);
  }

  void begin(const Call&, cudaStream_t stream) override { mark(Mark::kReady, stream); }
  void enter(const Call& call, const void* in) override { group_.enter(host_, call, in, nullptr); }
  const void* memory(int member) override {
    return group_.places()[static_cast<size_t>(member)].in;
  }
  void leave() override { group_.leave(host_.rank()); }
  void mark(Mark mark, cudaStream_t stream) override {
    record(board(host_.rank()).event(mark), stream);
  }
  void wait(cudaStream_t stream, int member, Mark mark) override {
    wait_for(stream, board(member).event(mark));
  }
  void wait_for_others(cudaStream_t stream, Mark mark) override {
    for (int member = 0; member < host_.size(); ++member) {
      if (member != host_.rank()) wait(stream, member, mark);
    }
  }
  void give_up() noexcept override {}  // an event that is not recorded keeps nobody waiting

  Sent send(const Call& call, const void* data, cudaStream_t stream) override;
  const void* receive(const Call& call, cudaStream_t stream) override;
  void finish_receive(const Call& call, cudaStream_t stream) override;
  bool is_taken(Sent sent) const override { return ticket(sent).is_taken.load(); }
  bool is_read(Sent sent) const override {
    return is_taken(sent) && cudaEventQuery(ticket(sent).done.get()) == cudaSuccess;
  }
  void await_taken(const Call& call, Sent sent) override;
  void wait(cudaStream_t stream, Sent sent) override { wait_for(stream, ticket(sent).done.get()); }
  void forget(Sent sent) override {
    idle_[static_cast<size_t>(sent.receiver)].push_back(sent.number);
  }
  void sync_hosts() override {
    group_.enter(host_, {Operation::kBarrier}, nullptr, nullptr);
    group_.leave(host_.rank());
  }
  bool shares_a_gpu() const override;
  bool may_be_stuck() const override { return false; }

 private:
  Board& board(int member) const { return *boards_[static_cast<size_t>(member)]; }
  Ticket& ticket(Sent sent) const {
    return board(host_.rank()).tickets[static_cast<size_t>(sent.number)];
  }

  Transport& host_;
  ThreadGroup& group_;
  const Boards boards_;                      // by member
  std::vector<std::vector<uint64_t>> idle_;  // tickets, by receiver
  Ticket* received_ = nullptr;
};

Link::Sent ThreadLink::send(const Call& call, const void* data, cudaStream_t stream) {
  std::vector<uint64_t>& idle = idle_[static_cast<size_t>(call.peer)];
  if (idle.empty()) {
    std::deque<Ticket>& tickets = board(host_.rank()).tickets;
    idle.push_back(tickets.size());
    // Created in this order, its events leave this rank's GPU the current one.
    tickets.emplace_back(board(host_.rank()).device, board(call.peer).device);
  }
  const Sent sent{call.peer, idle.back()};
  idle.pop_back();
  Ticket* const address = &ticket(sent);
  address->data = data;
  address->is_taken.store(false);
  record(address->ready.get(), stream);
  group_.post(host_, call, std::as_bytes(std::span(&address, 1)));
  return sent;
}

const void* ThreadLink::receive(const Call& call, cudaStream_t stream) {
  group_.receive(host_, call, std::as_writable_bytes(std::span(&received_, 1)));
  wait_for(stream, received_->ready.get());
  return received_->data;
}

void ThreadLink::finish_receive(const Call&, cudaStream_t stream) {
  record(received_->done.get(), stream);
  received_->is_taken.store(true);
}

bool ThreadLink::shares_a_gpu() const {
  std::set<int> gpus;
  for (const auto& board : boards_) gpus.insert(board->device);
  return gpus.size() < boards_.size();
}

void ThreadLink::await_taken(const Call& call, Sent sent) {
  const std::chrono::milliseconds timeout = host_.context().timeout;
  const Clock::time_point deadline = Clock::now() + timeout;
  const auto fail = [&](const std::string& why) {
    throw CommError(
        fmt::format("{}: {} {}", host_.name_of(call), host_.name_of(host_.rank()), why));
  };
  for (int tries = 0; !is_taken(sent); ++tries) {
    if (tries < 1000) {
      std::this_thread::yield();
      continue;
    }
    if (const std::optional<std::string> others = host_.failure()) {
      fail("was released because " + *others);
    }
    if (Clock::now() > deadline) {
      host_.print_flight_records();
      fail(fmt::format("waited {} s for {} to receive (last call: {})",
                       static_cast<double>(timeout.count()) / 1000, host_.name_of(call.peer),
                       host_.last_call(call.peer)));
    }
    std::this_thread::sleep_for(std::chrono::microseconds(20));
  }
}

}  // namespace

std::unique_ptr<Link> make_thread_link(Transport& host, Device device) {
  Boards boards = shown_to_all(host, device.index);
  if (!can_access_each_other(boards)) return nullptr;
  open_access(device.index, boards);
  return std::make_unique<ThreadLink>(host, std::move(boards));
}

}  // namespace megatron::comm::peer

#include "megatron/comm/peer/peer_transport.h"

#include <cuda_runtime_api.h>
#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdlib>
#include <deque>
#include <exception>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "megatron/comm/peer/sum.h"
#include "megatron/comm/threads/thread_group.h"
#include "megatron/core/error.h"
#include "megatron/device/allocator.h"
#include "megatron/device/cuda/check.h"

namespace megatron::comm::peer {
namespace {

using Clock = std::chrono::steady_clock;

constexpr int64_t kKiB = 1024;
constexpr int64_t kMiB = 1024 * kKiB;
// Up to this size a kernel that reads the others' memory is faster than copies and a sum.
constexpr int64_t kSmallBytes = 256 * kKiB;
// A large sum is taken piece by piece: while one piece of the other members is summed, later ones
// are pulled into slots in turn. Beside products, pieces are as large as a slot, because every sum
// has to wait until a product that uses all multiprocessors ends.
constexpr int64_t kPieceBytes = 8 * kMiB;
constexpr int64_t kSlotBytes = 64 * kMiB;
constexpr int kSlots = 3;
constexpr int64_t kAlignment = 256;   // of pieces
constexpr int64_t kVectorBytes = 16;  // slices of ranks begin at multiples
constexpr auto kSpinTime = std::chrono::milliseconds(1);
constexpr auto kFarewell = std::chrono::seconds(10);  // for pending messages to be received

const std::byte* at(const void* data, int64_t offset) {
  return static_cast<const std::byte*>(data) + offset;
}
std::byte* at(void* data, int64_t offset) { return static_cast<std::byte*>(data) + offset; }

// Copies by a copy engine; within a GPU the driver uses a kernel.
void copy(void* to, const void* from, int64_t bytes, cudaStream_t stream) {
  if (bytes == 0 || to == from) return;
  MG_CUDA(cudaMemcpyAsync(to, from, static_cast<size_t>(bytes), cudaMemcpyDefault, stream));
}
void record(cudaEvent_t event, cudaStream_t stream) { MG_CUDA(cudaEventRecord(event, stream)); }
void wait(cudaStream_t stream, cudaEvent_t event) {
  MG_CUDA(cudaStreamWaitEvent(stream, event, 0));
}
cudaStream_t native_of(Stream stream) { return static_cast<cudaStream_t>(stream.native); }

class PeerEvent {
 public:
  // Makes `device` this thread's current device.
  explicit PeerEvent(int device) {
    MG_CUDA(cudaSetDevice(device));
    MG_CUDA(cudaEventCreateWithFlags(&event_, cudaEventDisableTiming));
  }
  ~PeerEvent() { cudaEventDestroy(event_); }
  PeerEvent(const PeerEvent&) = delete;
  PeerEvent& operator=(const PeerEvent&) = delete;
  cudaEvent_t get() const { return event_; }

 private:
  cudaEvent_t event_ = nullptr;
};

// A message to one receiver, which reads it between receiving its address and marking it taken.
struct Ticket {
  Ticket(int sender, int receiver) : done(receiver), ready(sender) {}

  const void* data = nullptr;
  PeerEvent done;                    // the receiver has read the data
  PeerEvent ready;                   // the data is complete
  std::atomic<bool> is_taken{true};  // `done` is recorded
  void* copy = nullptr;              // the transport's own memory, or lent memory
  int64_t copy_bytes = 0;
};

// The part of a member's state that others see. Lives as long as any of them.
struct Board {
  explicit Board(int gpu) : device(gpu), ready(gpu), middle(gpu), done(gpu) {}

  const int device;
  PeerEvent ready;             // its input of a collective is complete
  PeerEvent middle;            // its slice of a sum is complete
  PeerEvent done;              // it has read everything
  std::deque<Ticket> tickets;  // only the member itself adds to them
};
using Boards = std::vector<std::shared_ptr<Board>>;

// The boards of all members.
Boards shown_to_all(Transport& host, int device) {
  ThreadGroup& group = *host.threads();
  const std::shared_ptr<Board> mine = std::make_shared<Board>(device);
  group.meet(host, {Operation::kConnect}, &mine, nullptr);
  Boards boards;
  for (const ThreadGroup::Place& place : group.places()) {
    boards.push_back(*static_cast<const std::shared_ptr<Board>*>(place.in));
  }
  group.part(host.rank());
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

class PeerTransport final : public DeviceTransport {
 public:
  PeerTransport(Transport& host, Device device, Boards boards);
  ~PeerTransport() override;

  void run(const Call& call, const void* in, void* out, Stream stream) override;
  void exchange(std::span<const Transfer> transfers, Stream stream) override;
  UnfinishedExchange* start_exchange(std::span<const Transfer> transfers, Stream stream) override;
  const char* name() const override { return "peer copies"; }
  Stream own_stream() override { return {device_, own_stream_}; }

 private:
  using Memories = std::vector<const void*>;  // of all members
  struct Slice {                              // in bytes
    int64_t begin = 0;
    int64_t size = 0;
  };
  struct Slot {  // for a large sum
    explicit Slot(int gpu) : pulled(gpu), summed(gpu) {}
    PeerEvent pulled;
    PeerEvent summed;  // the slot may be filled again
    std::byte* data = nullptr;
    int64_t bytes = 0;
  };
  struct Lent {
    Ticket* ticket = nullptr;
    Call call;
  };
  // A batch with messages that the host has yet to receive, and with lent memory.
  class Batch final : public UnfinishedExchange {
   public:
    explicit Batch(PeerTransport& owner) : transport_(owner) {}
    void finish() override;

    std::vector<Transfer> receives;
    std::vector<Lent> lent;
    cudaStream_t stream = nullptr;

   private:
    PeerTransport& transport_;
  };

  int size() const { return host_.size(); }
  int rank() const { return host_.rank(); }
  const Board& board(int member) const { return *boards_[static_cast<size_t>(member)]; }
  // Calls f(member) for the others, starting with the next one, so that not all read one member.
  template <class F>
  void for_others(const F& f) const {
    for (int step = 1; step < size(); ++step) f((rank() + step) % size());
  }
  void refuse_record(const Call& call, cudaStream_t stream) const;

  // The work of a collective on this GPU between meet() and part(), and between two part()s.
  void queue(const Call& call, const Memories& theirs, void* out, cudaStream_t stream);
  void queue_second(const Call& call, const Memories& theirs, void* out, cudaStream_t stream);
  // out := the sum of the members' elements in a slice.
  void reduce(void* out, const Memories& theirs, Slice from, const Call& call, cudaStream_t stream);
  void reduce_directly(void* out, const Memories& theirs, Slice from, const Call& call,
                       cudaStream_t stream);
  Slice slice_of(const Call& call, int member) const;
  std::byte* small();
  // The next slot, with room for `bytes`. If it grows the host waits, and the pulls wait for this
  // rank's stream.
  Slot& taken_slot(int64_t bytes);

  Ticket& new_ticket(int receiver);
  void hand_over(Ticket& ticket, const Call& call, const void* data, cudaStream_t stream);
  void send_copy(const Transfer& transfer, cudaStream_t stream);
  Lent lend(const Transfer& transfer, cudaStream_t stream);
  Batch& idle_batch();
  void receive(const Transfer& transfer, cudaStream_t stream);
  void take_back(const Lent& lent, cudaStream_t stream);

  Transport& host_;
  ThreadGroup& group_;
  const Device device_;
  const Boards boards_;  // by member
  cudaStream_t own_stream_ = nullptr;

  cudaStream_t pulls_ = nullptr;  // for large sums
  std::deque<Slot> slots_;
  size_t next_slot_ = 0;
  std::byte* small_ = nullptr;  // holds a small sum
  PeerEvent small_done_;        // the sum has been copied
  struct Tickets {              // to one receiver
    std::vector<Ticket*> idle;  // for lent memory
    std::vector<Ticket*> copies;
  };
  std::vector<Tickets> tickets_;  // by receiver
  std::deque<Batch> batches_;
  std::vector<Batch*> idle_batches_;
};

PeerTransport::PeerTransport(Transport& host, Device device, Boards boards)
    : host_(host),
      group_(*host.threads()),
      device_(device),
      boards_(std::move(boards)),
      small_done_(device.index),
      tickets_(boards_.size()) {
  group_.spin_for(kSpinTime);
  for (int i = 0; i < kSlots; ++i) slots_.emplace_back(device.index);
  int least = 0;
  int greatest = 0;
  MG_CUDA(cudaDeviceGetStreamPriorityRange(&least, &greatest));
  MG_CUDA(cudaStreamCreateWithPriority(&own_stream_, cudaStreamNonBlocking, greatest));
  MG_CUDA(cudaStreamCreateWithPriority(&pulls_, cudaStreamNonBlocking, greatest));
}

PeerTransport::~PeerTransport() {
  const Clock::time_point deadline = Clock::now() + kFarewell;
  const auto may_wait = [&] {
    return std::uncaught_exceptions() == 0 && !host_.failure() && Clock::now() < deadline;
  };
  CachingAllocator& memory = allocator_of(device_);
  for (const Tickets& tickets : tickets_) {
    for (const Ticket* const ticket : tickets.copies) {
      while (!ticket->is_taken.load() && may_wait()) {
        std::this_thread::sleep_for(std::chrono::microseconds(50));
      }
      if (!ticket->is_taken.load()) continue;  // its receiver may still read: leak the memory
      cudaEventSynchronize(ticket->done.get());
      memory.release(ticket->copy);
    }
  }
  for (cudaStream_t const stream : {own_stream_, pulls_}) {
    cudaStreamSynchronize(stream);
    cudaStreamDestroy(stream);
  }
  for (const Slot& slot : slots_) cudaEventSynchronize(slot.summed.get());
  cudaEventSynchronize(small_done_.get());
  for (const Slot& slot : slots_) {
    if (slot.data != nullptr) memory.release(slot.data);
  }
  if (small_ != nullptr) memory.release(small_);
}

void PeerTransport::refuse_record(const Call& call, cudaStream_t stream) const {
  cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
  MG_CUDA(cudaStreamIsCapturing(stream, &status));
  if (status == cudaStreamCaptureStatusNone) return;
  throw Unsupported(fmt::format(
      "{}: peer copies cannot be recorded in a CUDA graph; use MEGATRON_PEER_COPIES=off (NCCL)",
      host_.name_of(call)));
}

void PeerTransport::run(const Call& call, const void* in, void* out, Stream stream) {
  cudaStream_t const native = native_of(stream);
  refuse_record(call, native);
  record(board(rank()).ready.get(), native);
  group_.meet(host_, call, in, out);
  Memories theirs;
  for (const ThreadGroup::Place& place : group_.places()) theirs.push_back(place.in);

  // The others wait at part(), even if this fails.
  std::exception_ptr error;
  const auto run_and_part = [&](const auto& work) {
    try {
      if (error == nullptr) work();
    } catch (...) {
      error = std::current_exception();
    }
    group_.part(rank());
  };
  const bool is_small = call.bytes() <= kSmallBytes;
  run_and_part([&] { queue(call, theirs, out, native); });
  if (call.operation == Operation::kAllReduce && !is_small) {
    run_and_part([&] { queue_second(call, theirs, out, native); });
  }
  if (error != nullptr) std::rethrow_exception(error);
  for_others([&](int member) { wait(native, board(member).done.get()); });
  if (call.operation == Operation::kAllReduce && is_small) {
    copy(out, small(), call.bytes(), native);
    record(small_done_.get(), native);
  }
}

void PeerTransport::queue(const Call& call, const Memories& theirs, void* out,
                          cudaStream_t stream) {
  const int64_t bytes = call.bytes();
  const auto pull = [&](int member, void* to, int64_t from) {
    wait(stream, board(member).ready.get());
    copy(to, at(theirs[static_cast<size_t>(member)], from), bytes, stream);
  };
  switch (call.operation) {
    // This rank's own part comes last: its kernel may have to wait for a product beside it.
    case Operation::kAllGather:
      for_others([&](int member) { pull(member, at(out, member * bytes), 0); });
      pull(rank(), at(out, rank() * bytes), 0);
      break;
    case Operation::kAllToAll:
      for_others([&](int member) { pull(member, at(out, member * bytes), rank() * bytes); });
      pull(rank(), at(out, rank() * bytes), rank() * bytes);
      break;
    case Operation::kBroadcast:
      pull(call.peer, out, 0);
      break;
    case Operation::kReduceScatter:
      reduce(out, theirs, {rank() * bytes, bytes}, call, stream);
      break;
    case Operation::kAllReduce:
      if (bytes > kSmallBytes) {
        const Slice own = slice_of(call, rank());
        reduce(at(out, own.begin), theirs, own, call, stream);
        record(board(rank()).middle.get(), stream);
        return;  // the second part does the rest
      }
      // Into separate memory, because the others still read the input.
      wait(stream, small_done_.get());
      reduce_directly(small(), theirs, {0, bytes}, call, stream);
      break;
    default:
      throw InternalError(
          fmt::format("GPUs have no {} by peer copies", comm::name_of(call.operation)));
  }
  record(board(rank()).done.get(), stream);
}

void PeerTransport::queue_second(const Call& call, const Memories& theirs, void* out,
                                 cudaStream_t stream) {
  for_others([&](int member) {
    const Slice slice = slice_of(call, member);
    wait(stream, board(member).middle.get());
    copy(at(out, slice.begin), at(theirs[static_cast<size_t>(member)], slice.begin), slice.size,
         stream);
  });
  record(board(rank()).done.get(), stream);
}

PeerTransport::Slice PeerTransport::slice_of(const Call& call, int member) const {
  const int64_t vectors = (call.bytes() + kVectorBytes - 1) / kVectorBytes;
  const auto begin_of = [&](int64_t i) {
    return std::min(vectors * i / size() * kVectorBytes, call.bytes());
  };
  return {begin_of(member), begin_of(member + 1) - begin_of(member)};
}

std::byte* PeerTransport::small() {
  if (small_ == nullptr) {
    small_ = static_cast<std::byte*>(
        allocator_of(device_).allocate(kSmallBytes, MemoryCategory::kWorkspace));
  }
  return small_;
}

PeerTransport::Slot& PeerTransport::taken_slot(int64_t bytes) {
  Slot& slot = slots_[next_slot_];
  next_slot_ = (next_slot_ + 1) % slots_.size();
  if (slot.bytes >= bytes) return slot;
  CachingAllocator& memory = allocator_of(device_);
  if (slot.data != nullptr) {
    MG_CUDA(cudaEventSynchronize(slot.summed.get()));
    slot.bytes = 0;
    memory.release(std::exchange(slot.data, nullptr));
  }
  slot.data = static_cast<std::byte*>(memory.allocate(bytes, MemoryCategory::kWorkspace));
  slot.bytes = bytes;
  // Earlier work of this rank's stream, all before `ready`, may still use the memory.
  wait(pulls_, board(rank()).ready.get());
  return slot;
}

void PeerTransport::reduce_directly(void* out, const Memories& theirs, Slice from, const Call& call,
                                    cudaStream_t stream) {
  for_others([&](int member) { wait(stream, board(member).ready.get()); });
  Memories in;
  for (const void* const memory : theirs) in.push_back(at(memory, from.begin));
  reduce_in_order(out, in, from.size / size_of(call.dtype), call.dtype, call.reduce, stream);
}

void PeerTransport::reduce(void* out, const Memories& theirs, Slice from, const Call& call,
                           cudaStream_t stream) {
  if (from.size <= kSmallBytes) return reduce_directly(out, theirs, from, call, stream);
  const int64_t others = size() - 1;
  const int64_t most = std::min(stream == own_stream_ ? kSlotBytes : kPieceBytes,
                                kSlotBytes / others / kAlignment * kAlignment);
  const int64_t count = (from.size + most - 1) / most;
  const int64_t piece =  // equal pieces
      ((from.size + count - 1) / count + kAlignment - 1) / kAlignment * kAlignment;
  for_others([&](int member) { wait(pulls_, board(member).ready.get()); });
  for (int64_t begin = 0; begin < from.size; begin += piece) {
    const int64_t bytes = std::min(piece, from.size - begin);
    const Slot& slot = taken_slot(piece * others);
    std::byte* place = slot.data;
    Memories in(theirs.size());
    in[static_cast<size_t>(rank())] = at(theirs[static_cast<size_t>(rank())], from.begin + begin);
    wait(pulls_, slot.summed.get());
    for_others([&](int member) {
      const auto i = static_cast<size_t>(member);
      copy(place, at(theirs[i], from.begin + begin), bytes, pulls_);
      in[i] = std::exchange(place, place + piece);
    });
    record(slot.pulled.get(), pulls_);
    wait(stream, slot.pulled.get());
    reduce_in_order(at(out, begin), in, bytes / size_of(call.dtype), call.dtype, call.reduce,
                    stream);
    record(slot.summed.get(), stream);
  }
}

void PeerTransport::exchange(std::span<const Transfer> transfers, Stream stream) {
  if (UnfinishedExchange* const rest = start_exchange(transfers, stream)) rest->finish();
}

UnfinishedExchange* PeerTransport::start_exchange(std::span<const Transfer> transfers,
                                                  Stream stream) {
  cudaStream_t const native = native_of(stream);
  refuse_record(call_of(transfers[0]), native);
  const auto is_receive = [](const Transfer& transfer) { return !transfer.is_send; };
  if (std::none_of(transfers.begin(), transfers.end(), is_receive)) {
    for (const Transfer& transfer : transfers) send_copy(transfer, native);
    return nullptr;
  }
  Batch& batch = idle_batch();
  batch.stream = native;
  for (const Transfer& transfer : transfers) {
    if (transfer.is_send) {
      batch.lent.push_back(lend(transfer, native));
    } else {
      batch.receives.push_back(transfer);
    }
  }
  return &batch;
}

void PeerTransport::Batch::finish() {
  for (const Transfer& transfer : receives) transport_.receive(transfer, stream);
  for (const Lent& loan : lent) transport_.take_back(loan, stream);
  receives.clear();
  lent.clear();
  transport_.idle_batches_.push_back(this);
}

PeerTransport::Batch& PeerTransport::idle_batch() {
  if (idle_batches_.empty()) return batches_.emplace_back(*this);
  Batch& batch = *idle_batches_.back();
  idle_batches_.pop_back();
  return batch;
}

Ticket& PeerTransport::new_ticket(int receiver) {
  // Created in this order, its events leave this rank's GPU the current one.
  return boards_[static_cast<size_t>(rank())]->tickets.emplace_back(device_.index,
                                                                    board(receiver).device);
}

void PeerTransport::hand_over(Ticket& ticket, const Call& call, const void* data,
                              cudaStream_t stream) {
  ticket.data = data;
  ticket.is_taken.store(false);
  record(ticket.ready.get(), stream);
  Ticket* const address = &ticket;
  group_.post(host_, call, std::as_bytes(std::span(&address, 1)));
}

void PeerTransport::send_copy(const Transfer& transfer, cudaStream_t stream) {
  const int64_t bytes = transfer.view.bytes();
  std::vector<Ticket*>& copies = tickets_[static_cast<size_t>(transfer.peer)].copies;
  const auto found = std::find_if(copies.begin(), copies.end(), [&](const Ticket* ticket) {
    return ticket->is_taken.load() && ticket->copy_bytes >= bytes;
  });
  Ticket* ticket = nullptr;
  if (found != copies.end()) {
    ticket = *found;
    wait(stream, ticket->done.get());
  } else {
    ticket = &new_ticket(transfer.peer);
    ticket->copy = allocator_of(device_).allocate(bytes, MemoryCategory::kWorkspace);
    ticket->copy_bytes = bytes;
    copies.push_back(ticket);
  }
  copy(ticket->copy, transfer.view.data, bytes, stream);
  hand_over(*ticket, call_of(transfer), ticket->copy, stream);
}

PeerTransport::Lent PeerTransport::lend(const Transfer& transfer, cudaStream_t stream) {
  std::vector<Ticket*>& idle = tickets_[static_cast<size_t>(transfer.peer)].idle;
  if (idle.empty()) idle.push_back(&new_ticket(transfer.peer));
  Ticket* const ticket = idle.back();
  idle.pop_back();
  hand_over(*ticket, call_of(transfer), transfer.view.data, stream);
  return {ticket, call_of(transfer)};
}

void PeerTransport::receive(const Transfer& transfer, cudaStream_t stream) {
  Ticket* ticket = nullptr;
  group_.receive(host_, call_of(transfer), std::as_writable_bytes(std::span(&ticket, 1)));
  wait(stream, ticket->ready.get());
  copy(transfer.view.data, ticket->data, transfer.view.bytes(), stream);
  record(ticket->done.get(), stream);
  ticket->is_taken.store(true);
}

void PeerTransport::take_back(const Lent& lent, cudaStream_t stream) {
  const std::chrono::milliseconds timeout = host_.context().timeout;
  const Clock::time_point deadline = Clock::now() + timeout;
  const auto fail = [&](const std::string& why) {
    throw CommError(fmt::format("{}: {} {}", host_.name_of(lent.call), host_.name_of(rank()), why));
  };
  for (int tries = 0; !lent.ticket->is_taken.load(); ++tries) {
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
                       static_cast<double>(timeout.count()) / 1000, host_.name_of(lent.call.peer),
                       host_.last_call(lent.call.peer)));
    }
    std::this_thread::sleep_for(std::chrono::microseconds(20));
  }
  wait(stream, lent.ticket->done.get());
  tickets_[static_cast<size_t>(lent.call.peer)].idle.push_back(lent.ticket);
}

bool is_turned_off() {
  const char* const value = std::getenv("MEGATRON_PEER_COPIES");
  return value != nullptr && std::string_view(value) == "off";
}

}  // namespace

std::unique_ptr<DeviceTransport> make_peer_transport(Transport& host, Device device) {
  if (host.threads() == nullptr || host.size() > kMaxInputs || is_turned_off()) return nullptr;
  Boards boards = shown_to_all(host, device.index);
  if (!can_access_each_other(boards)) return nullptr;
  open_access(device.index, boards);
  return std::make_unique<PeerTransport>(host, device, std::move(boards));
}

}  // namespace megatron::comm::peer

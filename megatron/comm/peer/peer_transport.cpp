#include "megatron/comm/peer/peer_transport.h"

#include <cuda_runtime_api.h>
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdlib>
#include <deque>
#include <exception>
#include <optional>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "megatron/comm/bytes.h"
#include "megatron/comm/peer/event.h"
#include "megatron/comm/peer/link.h"
#include "megatron/comm/peer/one_shot.h"
#include "megatron/comm/peer/sum.h"
#include "megatron/core/error.h"
#include "megatron/device/allocator.h"
#include "megatron/device/cuda.h"
#include "megatron/device/cuda/check.h"

namespace megatron::comm::peer {
namespace {

using Clock = std::chrono::steady_clock;

constexpr int64_t kKiB = 1024;
constexpr int64_t kMiB = 1024 * kKiB;
// Up to this size a kernel that reads the others' memory is faster than copies and a sum.
constexpr int64_t kPeerSmallBytes = 256 * kKiB;
// A large sum is pipelined: while one piece of the other members is summed, later ones are pulled
// into slots in turn. If products run concurrently, pieces are as large as a slot, because every
// sum waits until a product that uses all multiprocessors ends.
constexpr int64_t kPeerPieceBytes = 8 * kMiB;
constexpr int64_t kSlotBytes = 64 * kMiB;
constexpr int kSlots = 3;
constexpr int64_t kAlignment = 256;                           // of pieces
constexpr int64_t kVectorBytes = 16;                          // slices of ranks begin at multiples
constexpr auto kPeerCloseTimeout = std::chrono::seconds(10);  // for pending messages to be received

// Copies by a copy engine; within a GPU the driver uses a kernel.
void copy(void* to, const void* from, int64_t bytes, cudaStream_t stream) {
  if (bytes == 0 || to == from) return;
  MG_CUDA(cudaMemcpyAsync(to, from, static_cast<size_t>(bytes), cudaMemcpyDefault, stream));
}
cudaStream_t native_of(Stream stream) { return static_cast<cudaStream_t>(stream.native); }

class PeerTransport final : public DeviceTransport {
 public:
  PeerTransport(Transport& host, Device device, std::unique_ptr<Link> link);
  ~PeerTransport() override;

  void run(const Call& call, const void* in, void* out, Stream stream) override;
  void exchange(std::span<const Transfer> transfers, Stream stream) override;
  UnfinishedExchange* start_exchange(std::span<const Transfer> transfers, Stream stream) override;
  const char* name() const override { return "peer copies"; }
  Stream own_stream() override { return {device_, own_stream_}; }
  bool can_record() override;
  void launch_barrier() override { link_->sync_hosts(); }

 private:
  using Memories = std::vector<const void*>;  // of all members, in one's slice
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
    Link::Sent sent;
    Call call;
  };
  struct Copy {  // of a message
    void* memory = nullptr;
    int64_t bytes = 0;
    std::optional<Link::Sent> sent;
  };
  // A batch with pending receives of the host, and with lent memory.
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
  // Calls f(member) for the others, starting with the next one, so that they do not all read one
  // member.
  template <class F>
  void for_others(const F& f) const {
    for (int step = 1; step < size(); ++step) f((rank() + step) % size());
  }
  // Queues a collective that is recorded; throws Unsupported for one that cannot be.
  void queue_recorded(const Call& call, const void* in, void* out, cudaStream_t stream) const;
  [[noreturn]] void refuse_record(const Call& call) const;

  // The work of a collective on this GPU between enter() and leave(), and between two leave()s.
  void queue(const Call& call, void* out, cudaStream_t stream);
  void queue_second(const Call& call, void* out, cudaStream_t stream);
  // out := the sum of the members' elements in a slice.
  void reduce(void* out, Slice from, const Call& call, cudaStream_t stream);
  void reduce_directly(void* out, Slice from, const Call& call, cudaStream_t stream);
  Slice slice_of(const Call& call, int member) const;
  std::byte* small();
  // The next slot, with room for `bytes`. If it grows the host waits, and the pulls wait for this
  // rank's stream.
  Slot& taken_slot(int64_t bytes);

  void send_copy(const Transfer& transfer, cudaStream_t stream);
  Lent lend(const Transfer& transfer, cudaStream_t stream);
  Batch& idle_batch();
  void receive(const Transfer& transfer, cudaStream_t stream);
  void take_back(const Lent& lent, cudaStream_t stream);

  Transport& host_;
  const Device device_;
  const std::unique_ptr<Link> link_;
  cudaStream_t own_stream_ = nullptr;

  cudaStream_t pulls_ = nullptr;  // for large sums
  std::deque<Slot> slots_;
  size_t next_slot_ = 0;
  OneShotGroup one_shot_;                  // of no members until can_record()
  std::byte* small_ = nullptr;             // holds a small sum
  PeerEvent small_done_;                   // the sum has been copied
  std::vector<std::vector<Copy>> copies_;  // by receiver
  std::deque<Batch> batches_;
  std::vector<Batch*> idle_batches_;
};

PeerTransport::PeerTransport(Transport& host, Device device, std::unique_ptr<Link> link)
    : host_(host),
      device_(device),
      link_(std::move(link)),
      small_done_(device.index),
      copies_(static_cast<size_t>(host.size())) {
  for (int i = 0; i < kSlots; ++i) slots_.emplace_back(device.index);
  int least = 0;
  int greatest = 0;
  MG_CUDA(cudaDeviceGetStreamPriorityRange(&least, &greatest));
  MG_CUDA(cudaStreamCreateWithPriority(&own_stream_, cudaStreamNonBlocking, greatest));
  MG_CUDA(cudaStreamCreateWithPriority(&pulls_, cudaStreamNonBlocking, greatest));
}

PeerTransport::~PeerTransport() {
  const Clock::time_point deadline = Clock::now() + kPeerCloseTimeout;
  const auto may_keep_waiting = [&] {
    return std::uncaught_exceptions() == 0 && !host_.failure() && Clock::now() < deadline;
  };
  if (link_->may_be_stuck()) return;  // leaks everything: the process ends
  CachingAllocator& memory = allocator_of(device_);
  for (const std::vector<Copy>& copies : copies_) {
    for (const Copy& copy : copies) {
      if (!copy.sent) continue;
      while (!link_->is_read(*copy.sent) && may_keep_waiting()) {
        std::this_thread::sleep_for(std::chrono::microseconds(50));
      }
      // If its receiver may still read, leak the memory.
      if (link_->is_read(*copy.sent)) memory.release(copy.memory);
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
  // Others may still read or write memory of one_shot_: it stays, a few MiB.
}

bool PeerTransport::can_record() {
  if (one_shot_.size > 0) return true;
  if (link_->shares_a_gpu() || size() > kMaxOneShotMembers) return false;
  const int64_t bytes = one_shot_bytes(size());
  CachingAllocator& memory = allocator_of(device_);
  auto* const own = static_cast<std::byte*>(memory.allocate(bytes, MemoryCategory::kWorkspace));
  one_shot_.memory[static_cast<size_t>(rank())] = own;
  MG_CUDA(cudaDeviceSynchronize());  // earlier work may still use the memory
  MG_CUDA(cudaMemsetAsync(own, 0, static_cast<size_t>(bytes), own_stream_));
  MG_CUDA(cudaStreamSynchronize(own_stream_));
  const Call call{Operation::kConnect, DType::kUInt8, bytes};
  link_->begin(call, own_stream_);
  link_->enter(call, own);
  // Addresses of other members' memory stay valid.
  for_others([&](int member) {
    one_shot_.memory[static_cast<size_t>(member)] =
        static_cast<std::byte*>(const_cast<void*>(link_->memory(member)));
  });
  link_->mark(Mark::kDone, own_stream_);
  link_->leave();
  link_->wait_for_others(own_stream_, Mark::kDone);
  one_shot_.stop = link_->stop();
  one_shot_.rank = rank();
  one_shot_.size = size();
  return true;
}

void PeerTransport::queue_recorded(const Call& call, const void* in, void* out,
                                   cudaStream_t stream) const {
  if (one_shot_.size == 0) refuse_record(call);
  switch (call.operation) {
    case Operation::kAllReduce:
      return one_shot_all_reduce(out, in, call.count, call.dtype, call.reduce, one_shot_, stream);
    case Operation::kAllGather:
      return one_shot_all_gather(out, in, call.bytes(), one_shot_, stream);
    default:
      refuse_record(call);
  }
}

void PeerTransport::refuse_record(const Call& call) const {
  throw Unsupported(
      fmt::format("{}: peer copies cannot be recorded in a CUDA graph", host_.name_of(call)));
}

void PeerTransport::run(const Call& call, const void* in, void* out, Stream stream) {
  cudaStream_t const native = native_of(stream);
  if (cuda::capture_of(native) != 0) return queue_recorded(call, in, out, native);
  link_->begin(call, native);
  link_->enter(call, in);

  // The others wait at leave(), even if this fails.
  std::exception_ptr error;
  const auto run_and_part = [&](const auto& work) {
    try {
      if (error == nullptr) work();
    } catch (...) {
      error = std::current_exception();
    }
    link_->leave();
  };
  const bool is_small = call.bytes() <= kPeerSmallBytes;
  run_and_part([&] { queue(call, out, native); });
  if (call.operation == Operation::kAllReduce && !is_small) {
    run_and_part([&] { queue_second(call, out, native); });
  }
  if (error != nullptr) {
    link_->give_up();
    std::rethrow_exception(error);
  }
  link_->wait_for_others(native, Mark::kDone);
  if (call.operation == Operation::kAllReduce && is_small) {
    copy(out, small(), call.bytes(), native);
    record(small_done_.get(), native);
  }
}

void PeerTransport::queue(const Call& call, void* out, cudaStream_t stream) {
  const int64_t bytes = call.bytes();
  const auto pull = [&](int member, void* to, int64_t from) {
    if (member != rank()) link_->wait(stream, member, Mark::kReady);
    copy(to, byte_at(link_->memory(member), from), bytes, stream);
  };
  switch (call.operation) {
    // This rank's own part comes last: its kernel may have to wait for a product beside it.
    case Operation::kAllGather:
      for_others([&](int member) { pull(member, byte_at(out, member * bytes), 0); });
      pull(rank(), byte_at(out, rank() * bytes), 0);
      break;
    case Operation::kAllToAll:
      for_others([&](int member) { pull(member, byte_at(out, member * bytes), rank() * bytes); });
      pull(rank(), byte_at(out, rank() * bytes), rank() * bytes);
      break;
    case Operation::kBroadcast:
      pull(call.peer, out, 0);
      break;
    case Operation::kReduceScatter:
      reduce(out, {rank() * bytes, bytes}, call, stream);
      break;
    case Operation::kAllReduce:
      if (bytes > kPeerSmallBytes) {
        const Slice own = slice_of(call, rank());
        reduce(byte_at(out, own.begin), own, call, stream);
        link_->mark(Mark::kMiddle, stream);
        return;  // the second part does the rest
      }
      // Into separate memory, because the others still read the input.
      wait_for(stream, small_done_.get());
      reduce_directly(small(), {0, bytes}, call, stream);
      break;
    default:
      throw InternalError(
          fmt::format("GPUs have no {} by peer copies", comm::name_of(call.operation)));
  }
  link_->mark(Mark::kDone, stream);
}

void PeerTransport::queue_second(const Call& call, void* out, cudaStream_t stream) {
  for_others([&](int member) {
    const Slice slice = slice_of(call, member);
    link_->wait(stream, member, Mark::kMiddle);
    copy(byte_at(out, slice.begin), byte_at(link_->memory(member), slice.begin), slice.size,
         stream);
  });
  link_->mark(Mark::kDone, stream);
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
        allocator_of(device_).allocate(kPeerSmallBytes, MemoryCategory::kWorkspace));
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
  link_->wait(pulls_, rank(), Mark::kReady);
  return slot;
}

void PeerTransport::reduce_directly(void* out, Slice from, const Call& call, cudaStream_t stream) {
  link_->wait_for_others(stream, Mark::kReady);
  Memories in;
  for (int member = 0; member < size(); ++member) {
    in.push_back(byte_at(link_->memory(member), from.begin));
  }
  reduce_in_order(out, in, from.size / size_of(call.dtype), call.dtype, call.reduce, stream);
}

void PeerTransport::reduce(void* out, Slice from, const Call& call, cudaStream_t stream) {
  if (from.size <= kPeerSmallBytes) return reduce_directly(out, from, call, stream);
  const int64_t others = size() - 1;
  const int64_t most = std::min(stream == own_stream_ ? kSlotBytes : kPeerPieceBytes,
                                kSlotBytes / others / kAlignment * kAlignment);
  const int64_t count = (from.size + most - 1) / most;
  const int64_t piece =  // equal pieces
      ((from.size + count - 1) / count + kAlignment - 1) / kAlignment * kAlignment;
  link_->wait_for_others(pulls_, Mark::kReady);
  for (int64_t begin = 0; begin < from.size; begin += piece) {
    const int64_t bytes = std::min(piece, from.size - begin);
    const Slot& slot = taken_slot(piece * others);
    std::byte* place = slot.data;
    Memories in(static_cast<size_t>(size()));
    in[static_cast<size_t>(rank())] = byte_at(link_->memory(rank()), from.begin + begin);
    wait_for(pulls_, slot.summed.get());
    for_others([&](int member) {
      copy(place, byte_at(link_->memory(member), from.begin + begin), bytes, pulls_);
      in[static_cast<size_t>(member)] = std::exchange(place, place + piece);
    });
    record(slot.pulled.get(), pulls_);
    wait_for(stream, slot.pulled.get());
    reduce_in_order(byte_at(out, begin), in, bytes / size_of(call.dtype), call.dtype, call.reduce,
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
  if (cuda::capture_of(native) != 0) refuse_record(call_of(transfers[0]));
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

void PeerTransport::send_copy(const Transfer& transfer, cudaStream_t stream) {
  const int64_t bytes = transfer.view.bytes();
  std::vector<Copy>& copies = copies_[static_cast<size_t>(transfer.peer)];
  auto copied = std::find_if(copies.begin(), copies.end(), [&](const Copy& copy) {
    return copy.sent && link_->is_taken(*copy.sent) && copy.bytes >= bytes;
  });
  if (copied != copies.end()) {
    link_->wait(stream, *copied->sent);
    link_->forget(*std::exchange(copied->sent, {}));
  } else {
    copied = copies.insert(copies.end(), Copy());
    copied->memory = allocator_of(device_).allocate(bytes, MemoryCategory::kWorkspace);
    copied->bytes = bytes;
  }
  copy(copied->memory, transfer.view.data, bytes, stream);
  copied->sent = link_->send(call_of(transfer), copied->memory, stream);
}

PeerTransport::Lent PeerTransport::lend(const Transfer& transfer, cudaStream_t stream) {
  const Call call = call_of(transfer);
  return {link_->send(call, transfer.view.data, stream), call};
}

void PeerTransport::receive(const Transfer& transfer, cudaStream_t stream) {
  const Call call = call_of(transfer);
  copy(transfer.view.data, link_->receive(call, stream), transfer.view.bytes(), stream);
  link_->finish_receive(call, stream);
}

void PeerTransport::take_back(const Lent& lent, cudaStream_t stream) {
  link_->await_taken(lent.call, lent.sent);
  link_->wait(stream, lent.sent);
  link_->forget(lent.sent);
}

}  // namespace

bool peer_copies_disabled() {
  const char* const value = std::getenv("MEGATRON_PEER_COPIES");
  return value != nullptr && std::string_view(value) == "off";
}

std::unique_ptr<DeviceTransport> make_peer_transport(Transport& host, Device device) {
  const bool are_threads = host.threads() != nullptr;
  if (host.size() > kMaxInputs || (are_threads && peer_copies_disabled())) return nullptr;
  std::unique_ptr<Link> link =
      are_threads ? make_thread_link(host, device) : make_process_link(host, device);
  if (link == nullptr) return nullptr;
  return std::make_unique<PeerTransport>(host, device, std::move(link));
}

}  // namespace megatron::comm::peer

#include "megatron/autograd/host_store.h"

#include <fmt/format.h>

#include <deque>
#include <utility>

#include "megatron/core/error.h"
#include "megatron/device/cuda.h"
#include "megatron/device/memory.h"
#include "megatron/device/stream.h"

namespace megatron {
namespace {

// A tensor that is on the device, in host memory, or on its way between them.
struct Stored {
  Shape shape;
  DType dtype = DType::kFloat32;
  int64_t bytes = 0;
  void* host = nullptr;  // null: given back
  Tensor device = {};    // undefined: not there
};

void* take_pinned(int64_t bytes, Device) {
  try {
    return cuda::allocate_pinned(bytes);
  } catch (const DeviceError& error) {
    throw DeviceError(
        fmt::format("--checkpoint-in-cpu: cannot pin {} bytes of the host's memory ({}); free "
                    "memory there, or run without the flag",
                    bytes, error.what()));
  }
}
void give_pinned(void* block, Device) { cuda::release_pinned(block); }

// Whole blocks for requests of one size, page-locked for a GPU.
MemorySource host_source(Device device) {
  MemorySource source = MemorySource::of(host_beside({device}).device);
  if (!device.is_cpu() && !device.is_dry) {
    source.take = take_pinned;
    source.give = give_pinned;
  }
  return source;
}

}  // namespace

// The stream of copies. Its order lets a block of host memory be used again while its last copy is
// still queued, and makes one event enough for each direction.
struct HostStore::Copies {
  explicit Copies(Stream the_work)
      : work(the_work),
        queue(work.device),
        host(host_beside(work).device, host_source(work.device)),
        is_ready(work.device),
        has_left(work.device),
        has_arrived(work.device) {}
  ~Copies() {
    try {
      synchronize(queue.get());
    } catch (const Error&) {
      // The next wait for the device reports it.
    }
  }
  Copies(const Copies&) = delete;
  Copies& operator=(const Copies&) = delete;

  // Copies when the work so far is done.
  void copy(void* to, const void* from, int64_t bytes) {
    is_ready.record(work);
    is_ready.hold_back(queue.get());
    copy_bytes(to, from, bytes, queue.get());
  }
  void send(Stored& x) {
    drop_last();
    copy(x.host, std::as_const(x.device).view().data, x.bytes);
    has_left.record(queue.get());
    last = &x;
  }
  // The device's copy of the last tensor goes. Later work may overwrite it when it has left.
  void drop_last() {
    if (last != nullptr) taken(*last);
  }
  // The device's copy of x, which is there or on its way there.
  Tensor taken(Stored& x) {
    if (last == &x) {
      has_left.hold_back(work);
      last = nullptr;
    } else {
      has_arrived.hold_back(work);
    }
    return std::exchange(x.device, Tensor());
  }
  // Begins to bring x back.
  void fetch(Stored& x) {
    if (!x.device.defined()) {
      x.device = Tensor(x.shape, x.dtype, work);
      copy(x.device.view().data, x.host, x.bytes);
      has_arrived.record(queue.get());
    }
    give_back(x);
  }
  void give_back(Stored& x) {
    if (x.host != nullptr) host.release(std::exchange(x.host, nullptr));
  }

  const Stream work;
  const OwnedStream queue;
  CachingAllocator host;
  Event is_ready;          // of the work before the last copy
  Event has_left;          // the last copy to the host
  Event has_arrived;       // the last copy to the device
  Stored* last = nullptr;  // stored last, and still on the device, too
};

// The tensors of a forward pass; lives as long as something can restore one of them.
class HostStore::Pass {
 public:
  explicit Pass(std::shared_ptr<Copies> copies) : copies_(std::move(copies)) {}
  ~Pass() {
    for (Stored& x : stored_) {
      try {
        if (x.device.defined()) copies_->taken(x);
      } catch (const Error&) {
        // The next wait for the device reports it.
      }
      copies_->give_back(x);
    }
  }
  Pass(const Pass&) = delete;
  Pass& operator=(const Pass&) = delete;

  // Returns the tensor's number.
  size_t store(const Tensor& x) {
    const MemoryScope scope(MemoryCategory::kActivations, "inputs of recomputed layers");
    void* const host = copies_->host.allocate(x.bytes(), MemoryCategory::kActivations);
    stored_.push_back({x.shape(), x.dtype(), x.bytes(), host, x});
    copies_->send(stored_.back());
    return stored_.size() - 1;
  }
  Tensor restored(size_t number) {
    Stored& x = stored_[number];
    copies_->fetch(x);
    Tensor there = copies_->taken(x);
    if (number > 0) copies_->fetch(stored_[number - 1]);
    return there;
  }

 private:
  std::shared_ptr<Copies> copies_;
  std::deque<Stored> stored_;  // elements stay where they are
};

HostStore::HostStore(Stream work) : copies_(std::make_shared<Copies>(work)) {}

StoredForm HostStore::new_pass() const {
  return [pass = std::make_shared<Pass>(copies_)](const Tensor& x) -> Restore {
    return [pass, number = pass->store(x)] { return pass->restored(number); };
  };
}

MemoryStats HostStore::stats() const { return copies_->host.stats(); }

}  // namespace megatron

#include "megatron/autograd/host_store.h"

#include <deque>
#include <utility>

#include "megatron/autograd/host_copies.h"
#include "megatron/core/error.h"

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

}  // namespace

// One event is enough for each direction.
struct HostStore::Copies : HostCopies {
  explicit Copies(Stream work)
      : HostCopies(work), has_left(work.device), has_arrived(work.device) {}

  void send(Stored& x) {
    drop_last();
    follow_work();
    copy(x.host, std::as_const(x.device).view().data, x.bytes);
    mark(has_left);
    last = &x;
  }
  // The device's copy of the last tensor goes. Later work may overwrite it when it has left.
  void drop_last() {
    if (last != nullptr) taken(*last);
  }
  // The device's copy of x, which is there or on its way there.
  Tensor taken(Stored& x) {
    if (last == &x) {
      has_left.hold_back(work());
      last = nullptr;
    } else {
      has_arrived.hold_back(work());
    }
    return std::exchange(x.device, Tensor());
  }
  // Begins to bring x back.
  void fetch(Stored& x) {
    if (!x.device.defined()) {
      x.device = Tensor(x.shape, x.dtype, work());
      follow_work();
      copy(x.device.view().data, x.host, x.bytes);
      mark(has_arrived);
    }
    give_back(x);
  }
  void give_back(Stored& x) {
    if (x.host != nullptr) release(std::exchange(x.host, nullptr));
  }

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
    void* const host = copies_->allocate(x.bytes());
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

MemoryStats HostStore::stats() const { return copies_->stats(); }

}  // namespace megatron

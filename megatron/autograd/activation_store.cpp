#include "megatron/autograd/activation_store.h"

#include <algorithm>
#include <cstring>
#include <deque>
#include <utility>
#include <vector>

#include "megatron/autograd/host_copies.h"
#include "megatron/core/error.h"

namespace megatron {
namespace {

// The memory of a tensor. Its storage calls the store before the next access.
struct Piece {
  std::weak_ptr<Storage> storage;
  int64_t bytes = 0;
  void* host = nullptr;  // null: given back
  Tensor device = {};    // on its way back, or there; undefined: away, or in its storage
};

// The memory that a part leaves.
struct Part {
  explicit Part(Device device) : has_left(device), has_arrived(device) {}

  std::vector<Piece> pieces;
  Event has_left;          // the copies to the host
  Event has_arrived;       // the copies back
  bool is_away = false;    // the device's memory is released
  bool is_coming = false;  // copies back have begun
  bool is_back = false;    // the work waits for them
};

// The bytes of a stale view become NaNs on the CPU, where a released block keeps them.
void spoil(const Storage& storage) {
  if (!storage.stream().device.has_host_memory()) return;
  std::memset(storage.data(), 0xff, static_cast<size_t>(storage.bytes()));
}

}  // namespace

struct ActivationStore::Copies : HostCopies {
  Copies(Stream work, int64_t the_num_beside)
      : HostCopies(work), num_beside(static_cast<size_t>(the_num_beside)) {}

  void give_back(Piece& piece) {
    if (piece.host != nullptr) release(std::exchange(piece.host, nullptr));
  }
  // Releases the device's memory of parts that leave, but for the last `num_left` ones.
  void send_away(size_t num_left);

  const size_t num_beside;
  // Parts on their way to the host, in the order of their ends.
  struct Leaving {
    std::weak_ptr<Flight> flight;
    size_t part;
  };
  std::deque<Leaving> leaving;
};

// One forward pass and its backward pass; lives as long as a tensor that is away.
struct ActivationStore::Flight : std::enable_shared_from_this<Flight> {
  Flight(std::shared_ptr<Copies> the_copies, int64_t the_min_numel)
      : copies(std::move(the_copies)), min_numel(the_min_numel) {}
  ~Flight() {
    for (Part& part : parts) {
      for (Piece& piece : part.pieces) {
        try {
          if (piece.device.defined()) part.has_arrived.hold_back(copies->work());
        } catch (const Error&) {
          // The next wait for the device reports it.
        }
        copies->give_back(piece);
      }
    }
  }
  Flight(const Flight&) = delete;
  Flight& operator=(const Flight&) = delete;

  bool may_leave(const NewTensors::Entry& entry, const Storage& storage) const {
    // Another stream's work is not ordered with the copies; a dropped result is computed again.
    const Stream& work = copies->work();
    return entry.numel >= min_numel && storage.bytes() > 0 && storage.has_memory() &&
           !storage.has_call_before_access() && storage.stream().device == work.device &&
           storage.stream().native == work.native;
  }

  void watch(Storage& storage, size_t part, size_t piece) {
    storage.set_before_access(
        [flight = shared_from_this(), part, piece] { flight->access(part, piece); });
  }

  // Begins to copy the part to the host.
  void end_part(const NewTensors& made, std::span<const Tensor> kept) {
    copies->send_away(copies->num_beside - 1);
    std::vector<NewTensors::Entry> candidates = std::exchange(carried, {});
    candidates.insert(candidates.end(), made.entries().begin(), made.entries().end());
    const size_t number = parts.size();
    Part& part = parts.emplace_back(copies->work().device);
    const MemoryScope scope(MemoryCategory::kActivations, "activations of layers");
    copies->follow_work();
    for (const NewTensors::Entry& entry : candidates) {
      const std::shared_ptr<Storage> storage = entry.storage.lock();
      if (storage == nullptr || !may_leave(entry, *storage)) continue;
      if (std::ranges::any_of(kept, [&](const Tensor& x) { return x.storage() == storage; })) {
        carried.push_back(entry);
        continue;
      }
      void* const host = copies->allocate(storage->bytes());
      part.pieces.push_back({storage, storage->bytes(), host});
      copies->copy(host, storage->data(), storage->bytes());
      watch(*storage, number, part.pieces.size() - 1);
    }
    copies->mark(part.has_left);
    copies->leaving.push_back({weak_from_this(), number});
  }

  // Releases the device's memory.
  void send_away(size_t number) {
    Part& part = parts[number];
    part.has_left.hold_back(copies->work());
    part.is_away = true;
    for (size_t i = 0; i < part.pieces.size(); ++i) {
      Piece& piece = part.pieces[i];
      const std::shared_ptr<Storage> storage = piece.storage.lock();
      if (storage == nullptr) copies->give_back(piece);
      if (piece.host == nullptr) continue;
      storage->set_before_access(nullptr);
      spoil(*storage);
      storage->drop();
      watch(*storage, number, i);
    }
  }

  // Begins to copy back the parts that go beside the backward pass of a part.
  void fetch_beside(size_t number) {
    for (size_t i = std::min(number, parts.size()); i > 0 && i + copies->num_beside > number; --i) {
      fetch(i - 1);
    }
  }
  void fetch(size_t number) {
    Part& part = parts[number];
    if (!part.is_away || std::exchange(part.is_coming, true)) return;
    fetch(part, part.pieces);
  }
  void fetch(Part& part, std::span<Piece> pieces) {
    const MemoryScope scope(MemoryCategory::kActivations, "activations back from the host");
    for (Piece& piece : pieces) {
      if (piece.host == nullptr || piece.storage.expired()) continue;
      piece.device = Tensor({piece.bytes}, DType::kUInt8, copies->work());
    }
    copies->follow_work();
    for (Piece& piece : pieces) {
      if (piece.device.defined()) {
        copies->copy(piece.device.view().data, piece.host, piece.bytes);
      }
      copies->give_back(piece);
    }
    copies->mark(part.has_arrived);
  }

  // Something reads or writes the piece.
  void access(size_t number, size_t index) {
    Part& part = parts[number];
    Piece& piece = part.pieces[index];
    const std::shared_ptr<Storage> storage = piece.storage.lock();
    invariant(storage != nullptr, "memory that is accessed exists");
    storage->set_before_access(nullptr);
    if (!part.is_away) {
      // The host's copy may be outdated soon. In the backward pass the others follow.
      copies->give_back(piece);
      if (!is_forward) stay(part);
    } else {
      if (is_forward) {
        fetch(part, std::span(&piece, 1));
      } else {
        fetch(number);
      }
      if (is_forward || !std::exchange(part.is_back, true)) {
        part.has_arrived.hold_back(copies->work());
      }
      storage->take_from(*piece.device.storage());
      piece.device = Tensor();
    }
    if (!is_forward) fetch_beside(number);
  }
  // The part remains on the device.
  void stay(Part& part) {
    for (Piece& piece : part.pieces) {
      if (piece.host == nullptr) continue;
      copies->give_back(piece);
      if (const auto storage = piece.storage.lock()) storage->set_before_access(nullptr);
    }
  }

  const std::shared_ptr<Copies> copies;
  const int64_t min_numel;
  std::deque<Part> parts;
  size_t num_staying = 0;                  // parts that have ended since
  std::vector<NewTensors::Entry> carried;  // results of the last part, which the next one may save
  bool is_forward = true;
};

void ActivationStore::Copies::send_away(size_t num_left) {
  while (leaving.size() > num_left) {
    const Leaving first = leaving.front();
    leaving.pop_front();
    if (const auto flight = first.flight.lock()) flight->send_away(first.part);
  }
}

ActivationStore::ActivationStore(Stream work, int64_t min_numel, int64_t num_beside)
    : copies_(std::make_shared<Copies>(work, num_beside)), min_numel_(min_numel) {}

ActivationStore::Pass ActivationStore::new_pass() const {
  return Pass(std::make_shared<Flight>(copies_, min_numel_));
}

MemoryStats ActivationStore::stats() const { return copies_->stats(); }

ActivationStore::Pass::Pass(std::shared_ptr<Flight> flight) : flight_(std::move(flight)) {}
ActivationStore::Pass::~Pass() { flight_->is_forward = false; }

void ActivationStore::Pass::end_part(const NewTensors& made, std::span<const Tensor> kept) {
  flight_->end_part(made, kept);
}

Variable ActivationStore::Pass::end_staying_part(const Variable& y) {
  Copies& copies = *flight_->copies;
  const size_t number = flight_->parts.size() + flight_->num_staying++;
  copies.send_away(copies.num_beside - std::min(copies.num_beside, flight_->num_staying));
  return record("fetch_activations", y.data(), {y},
                [flight = flight_, number](const Tensor& dy, const Wants&) -> Grads {
                  flight->fetch_beside(number);
                  return {dy};
                });
}

}  // namespace megatron

#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>

#include "megatron/device/memory.h"
#include "megatron/device/stream.h"
#include "megatron/tensor/tensor.h"

namespace megatron {

// Elements of a piece: large enough for the bus, small in pinned memory.
inline constexpr int64_t kHostPiece = 8 << 20;

// The traffic of an update that the host computes (Ren et al. 2021, arXiv:2101.06840, sec. 4):
// gradients are copied to the host and parameters to the device piece by piece, while the host
// updates the pieces in between. On the CPU the copies are immediate.
class HostUpdate {
 public:
  // For pieces of at most `most_elements`. `stream` is that of the parameters.
  HostUpdate(int64_t most_elements, Stream stream);
  // The pinned memory that it takes.
  static int64_t pinned_bytes(int64_t most_elements) {
    return kNumSlots * 2 * most_elements * size_of(DType::kFloat32);
  }

  struct Piece {
    Tensor grads;   // [n] on the device
    Tensor params;  // [n] on the device
  };
  // Writes `params` from `grads`, both in host memory.
  using Compute = std::function<void(size_t piece, TensorView params, ConstView grads)>;
  // Calls `compute` for each piece. On return parameters of the last pieces are still on their way,
  // in the order of the stream's work.
  void run(std::span<Piece> pieces, const Compute& compute);

 private:
  struct Slot {
    Slot(int64_t bytes, Device device)
        : grads(bytes, device), params(bytes, device), is_down(device), is_up(device) {}
    PinnedBuffer grads;
    PinnedBuffer params;
    Event is_down;
    Event is_up;
  };

  void start_down(Slot& slot, const Piece& piece);

  const Stream stream_;
  static constexpr int64_t kNumSlots = 2;  // of even and odd pieces
  std::array<Slot, kNumSlots> slots_;
};

}  // namespace megatron

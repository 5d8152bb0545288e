#include "megatron/optim/host_update.h"

namespace megatron {

HostUpdate::HostUpdate(int64_t most_elements, Stream stream)
    : stream_(stream),
      slots_{Slot(most_elements * size_of(DType::kFloat32), stream.device),
             Slot(most_elements * size_of(DType::kFloat32), stream.device)} {}

void HostUpdate::start_down(Slot& slot, const Piece& piece) {
  copy_bytes(slot.grads.data(), piece.grads.view().data, piece.grads.bytes(), stream_);
  slot.is_down.record(stream_);
}

void HostUpdate::run(std::span<Piece> pieces, const Compute& compute) {
  if (!pieces.empty()) start_down(slots_[0], pieces[0]);
  for (size_t i = 0; i < pieces.size(); ++i) {
    Slot& slot = slots_[i % 2];
    if (i + 1 < pieces.size()) start_down(slots_[(i + 1) % 2], pieces[i + 1]);
    slot.is_down.synchronize();
    slot.is_up.synchronize();  // the piece before the last one
    Piece& piece = pieces[i];
    compute(i, {slot.params.data(), piece.params.shape(), piece.params.dtype()},
            {slot.grads.data(), piece.grads.shape(), piece.grads.dtype()});
    copy_bytes(piece.params.view().data, slot.params.data(), piece.params.bytes(), stream_);
    slot.is_up.record(stream_);
  }
}

}  // namespace megatron

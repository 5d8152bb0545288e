#include "megatron/optim/host_update.h"

#include <gtest/gtest.h>

#include <vector>

#include "megatron/device/stream.h"
#include "tests/support/tensors.h"

namespace megatron {
namespace {

// Copies of several pieces are under way at once; each update sees the gradients of its own turn.
TEST(CudaHostUpdateTest, PiecesKeepTheirNumbers) {
  if (num_cuda_devices() == 0) GTEST_SKIP() << "no GPU: not run";
  const OwnedStream queue(Device{DeviceType::kCuda, 0});
  constexpr int64_t kMost = 1 << 20;
  constexpr size_t kPieces = 7;
  HostUpdate update(kMost, queue.get());
  std::vector<HostUpdate::Piece> pieces;
  for (size_t i = 0; i < kPieces; ++i) {
    const int64_t size = kMost - 1000 * static_cast<int64_t>(i);
    pieces.push_back({.grads = Tensor({size}, DType::kFloat32, queue.get()),
                      .params = Tensor({size}, DType::kBFloat16, queue.get())});
  }
  for (int turn = 1; turn <= 3; ++turn) {
    for (size_t i = 0; i < kPieces; ++i) {
      const auto value = static_cast<float>(100 * turn) + static_cast<float>(i);
      copy_into(pieces[i].grads, full(pieces[i].grads.shape(), value, DType::kFloat32, {}));
    }
    update.run(pieces, [](size_t, TensorView params, ConstView grads) {
      for (int64_t i = 0; i < grads.numel(); ++i) {
        params.as<BFloat16>()[i] = BFloat16(grads.as<float>()[i] - 100);
      }
    });
    for (size_t i = 0; i < kPieces; ++i) {
      const auto value = static_cast<float>(100 * turn - 100) + static_cast<float>(i);
      expect_identical(pieces[i].params.to(Stream{}),
                       full(pieces[i].params.shape(), value, DType::kBFloat16, {}),
                       "piece " + std::to_string(i));
    }
  }
}

}  // namespace
}  // namespace megatron

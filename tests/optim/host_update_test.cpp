#include "megatron/optim/host_update.h"

#include <gtest/gtest.h>

#include <vector>

#include "tests/support/tensors.h"

namespace megatron {
namespace {

TEST(HostUpdateTest, EachPieceGoesDownAndUp) {
  constexpr int64_t kMost = 8;
  HostUpdate update(kMost, Stream{});
  for (const size_t count : {0u, 1u, 2u, 5u}) {
    std::vector<HostUpdate::Piece> pieces;
    for (size_t i = 0; i < count; ++i) {
      const int64_t size = kMost - static_cast<int64_t>(i);
      pieces.push_back({.grads = random_normal({size}, {.seed = i + 1}),
                        .params = zeros({size}, DType::kBFloat16, Stream{})});
    }
    std::vector<size_t> order;
    update.run(pieces, [&](size_t piece, TensorView params, ConstView grads) {
      order.push_back(piece);
      ASSERT_EQ(params.shape, pieces[piece].params.shape());
      ASSERT_EQ(params.dtype, DType::kBFloat16);
      for (int64_t i = 0; i < grads.numel(); ++i) {
        params.as<BFloat16>()[i] = BFloat16(2 * grads.as<float>()[i]);
      }
    });
    ASSERT_EQ(order.size(), count);
    for (size_t i = 0; i < count; ++i) {
      EXPECT_EQ(order[i], i);
      Tensor twice = copied(pieces[i].grads);
      scale_inplace(twice, 2);
      expect_close(pieces[i].params, twice);
    }
  }
}

}  // namespace
}  // namespace megatron

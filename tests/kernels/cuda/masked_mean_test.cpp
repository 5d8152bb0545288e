#include "megatron/kernels/masked_mean.h"

#include <limits>

#include "tests/kernels/cuda/twin.h"

namespace megatron {
namespace {

using MaskedMeanCudaTest = CudaTest;

TEST_F(MaskedMeanCudaTest, ForwardAndBackward) {
  // [s, b]
  for (const Shape& shape :
       {Shape{0, 3}, Shape{1, 1}, Shape{5, 3}, Shape{1'025, 1}, Shape{127, 16}, Shape{4'096, 5}}) {
    const Tensor losses = random_normal(shape, {.seed = 1, .mean = 5});
    const Tensor ids = random_ids({shape[1], shape[0]}, 3, 2);
    Tensor mask({shape[1], shape[0]}, DType::kFloat32, Stream{});
    for (size_t i = 0; i < mask.span<float>().size(); ++i) {
      mask.span<float>()[i] = static_cast<float>(ids.span<int64_t>()[i]) / 2;
    }
    expect_twins({zeros({}, DType::kFloat32, Stream{}), zeros({}, DType::kFloat32, Stream{}),
                  losses, mask, random_normal({}, {.seed = 3}), copied(losses)},
                 [](std::vector<Tensor>& t, Stream stream) {
                   kernels::masked_mean_forward(t[0].view(), t[1].view(), t[2].view(), t[3].view(),
                                                ConstView{}, stream);
                   kernels::masked_mean_backward(t[5].view(), t[4].view(), t[1].view(), t[3].view(),
                                                 stream);
                 },
                 {.what = shape.str()});
  }
}

TEST_F(MaskedMeanCudaTest, DividesByWhatIsGiven) {
  expect_twins({zeros({}, DType::kFloat32, Stream{}), zeros({}, DType::kFloat32, Stream{}),
                random_normal({7, 3}, {.seed = 1}), full({3, 7}, 1.0f, DType::kFloat32, Stream{}),
                full({}, 2.5f, DType::kFloat32, Stream{})},
               [](std::vector<Tensor>& t, Stream stream) {
                 kernels::masked_mean_forward(t[0].view(), t[1].view(), t[2].view(), t[3].view(),
                                              t[4].view(), stream);
               });
}

TEST_F(MaskedMeanCudaTest, DoesNotReadLossesThatDoNotCount) {
  Tensor losses = full({3, 1}, std::numeric_limits<float>::infinity(), DType::kFloat32, Stream{});
  Tensor mask = zeros({1, 3}, DType::kFloat32, Stream{});
  losses.span<float>()[1] = 7;
  mask.span<float>()[1] = 1;
  expect_twins(
      {zeros({}, DType::kFloat32, Stream{}), zeros({}, DType::kFloat32, Stream{}), losses, mask},
      [](std::vector<Tensor>& t, Stream stream) {
        kernels::masked_mean_forward(t[0].view(), t[1].view(), t[2].view(), t[3].view(),
                                     ConstView{}, stream);
      });
}

}  // namespace
}  // namespace megatron

#include "megatron/kernels/norm.h"

#include <algorithm>

#include "megatron/kernels/elementwise.h"
#include "megatron/kernels/spread_norm.h"
#include "tests/kernels/cuda/twin.h"

namespace megatron {
namespace {

enum class Kind { kLayerNorm, kRmsNorm };

// Rows in no registers at all (not whole packs), a warp's, several warps', a block's, and beyond.
const Shape kNormShapes[] = {{0, 8},      {1, 1},       {5, 3},      {9, 127},       {700, 1'025},
                             {3, 8},      {1'001, 256}, {130, 512},  {4'099, 1'024}, {70, 2'048},
                             {33, 2'056}, {600, 4'096}, {21, 8'192}, {300, 12'288},  {3, 16'392},
                             {3, 32'768}, {2, 40'000}};

// Sums over a row or over all rows, then rounded to `dtype`.
Tolerance norm_tolerance_for(DType dtype, const Shape& shape) {
  const Tolerance sums = Tolerance{.relative = 1e-5, .absolute = 1e-5}.for_terms(
      std::max<int64_t>({shape[0], shape[1], 1}));
  const Tolerance rounding = tolerance_of(dtype);
  return {std::max(sums.relative, rounding.relative), std::max(sums.absolute, rounding.absolute)};
}

// Parameter: dtype of x.
class NormCudaTest : public CudaDtypeTest {
 protected:
  // y, weight and bias have dtype `other`.
  void check_forward(Kind kind, const Shape& shape, DType other, int64_t misaligned_by) const {
    const int64_t cols = shape[1];
    const Tensor x = random_normal(shape, {.seed = 1, .mean = 3, .stddev = 2, .dtype = GetParam()});
    const std::vector<Tensor> tensors = {
        zeros(shape, other, Stream{}),
        zeros({shape[0]}, DType::kFloat32, Stream{}),
        zeros({shape[0]}, DType::kFloat32, Stream{}),
        x,
        random_normal({cols}, {.seed = 2, .mean = 1, .dtype = other}),
        random_normal({cols}, {.seed = 3, .dtype = other})};
    const DType coarse = other == DType::kFloat32 ? GetParam() : other;
    for (const float offset : {0.0f, 1.0f}) {
      expect_twins(tensors,
                   [&](std::vector<Tensor>& t, Stream stream) {
                     if (kind == Kind::kLayerNorm) {
                       kernels::layer_norm_forward(t[0].view(), t[1].view(), t[2].view(),
                                                   t[3].view(), t[4].view(), t[5].view(), offset,
                                                   1e-5f, stream);
                     } else {
                       kernels::rms_norm_forward(t[0].view(), t[2].view(), t[3].view(), t[4].view(),
                                                 offset, 1e-5f, stream);
                     }
                   },
                   {.tolerance = norm_tolerance_for(coarse, shape),
                    .misaligned_by = misaligned_by,
                    .what = what(kind, shape, other)});
    }
  }

  struct Backward {
    bool has_dx = true;
    bool has_parameters = true;
    float beta = 0;
    int64_t misaligned_by = 0;
  };
  // dy, weight and the parameters' gradients have dtype `other`.
  void check_backward(Kind kind, const Shape& shape, DType other, const Backward& options) const {
    const int64_t cols = shape[1];
    const std::vector<Tensor> tensors = {
        zeros(shape, GetParam(), Stream{}),
        random_normal({cols}, {.seed = 1, .dtype = other}),
        random_normal({cols}, {.seed = 2, .dtype = other}),
        random_normal(shape, {.seed = 3, .dtype = other}),
        random_normal(shape, {.seed = 4, .mean = 1, .stddev = 2, .dtype = GetParam()}),
        random_normal({shape[0]}, {.seed = 5, .mean = 1, .stddev = 0.1f}),
        random_normal({shape[0]}, {.seed = 6, .mean = 0.5f, .stddev = 0.05f}),
        random_normal({cols}, {.seed = 7, .mean = 1, .dtype = other})};
    const DType coarse = other == DType::kFloat32 ? GetParam() : other;
    expect_twins(tensors,
                 [&](std::vector<Tensor>& t, Stream stream) {
                   const int64_t bytes = kernels::norm_backward_workspace_bytes(shape, stream);
                   Tensor workspace({bytes}, DType::kUInt8, stream);
                   const TensorView dx = options.has_dx ? t[0].view() : TensorView{};
                   const TensorView dweight = options.has_parameters ? t[1].view() : TensorView{};
                   const TensorView dbias = options.has_parameters ? t[2].view() : TensorView{};
                   if (kind == Kind::kLayerNorm) {
                     kernels::layer_norm_backward(dx, dweight, dbias, t[3].view(), t[4].view(),
                                                  t[5].view(), t[6].view(), t[7].view(), 1,
                                                  options.beta, workspace.view(), stream);
                   } else {
                     kernels::rms_norm_backward(dx, dweight, t[3].view(), t[4].view(), t[6].view(),
                                                t[7].view(), 1, options.beta, workspace.view(),
                                                stream);
                   }
                 },
                 {.tolerance = norm_tolerance_for(coarse, shape),
                  .misaligned_by = options.misaligned_by,
                  .what = what(kind, shape, other) + " beta " + std::to_string(options.beta)});
  }

 private:
  std::string what(Kind kind, const Shape& shape, DType other) const {
    return std::string(kind == Kind::kLayerNorm ? "layer_norm " : "rms_norm ") + shape.str() +
           " x " + std::string(name_of(GetParam())) + " weight " + std::string(name_of(other));
  }
};

TEST_P(NormCudaTest, LayerNormForward) {
  for (const Shape& shape : kNormShapes) check_forward(Kind::kLayerNorm, shape, GetParam(), 0);
  check_forward(Kind::kLayerNorm, {37, 1'024}, GetParam(), 1);
  check_forward(Kind::kLayerNorm, {37, 1'024}, DType::kBFloat16, 0);
  check_forward(Kind::kLayerNorm, {37, 4'096}, DType::kFloat32, 0);
}

TEST_P(NormCudaTest, RmsNormForward) {
  for (const Shape& shape : kNormShapes) check_forward(Kind::kRmsNorm, shape, GetParam(), 0);
  check_forward(Kind::kRmsNorm, {37, 1'024}, GetParam(), 1);
  check_forward(Kind::kRmsNorm, {37, 1'024}, DType::kBFloat16, 0);
  check_forward(Kind::kRmsNorm, {37, 4'096}, DType::kFloat32, 0);
}

TEST_P(NormCudaTest, LayerNormBackward) {
  for (const Shape& shape : kNormShapes) check_backward(Kind::kLayerNorm, shape, GetParam(), {});
}

TEST_P(NormCudaTest, RmsNormBackward) {
  for (const Shape& shape : kNormShapes) check_backward(Kind::kRmsNorm, shape, GetParam(), {});
}

TEST_P(NormCudaTest, BackwardOfMixedDtypesAndOfSomeOutputs) {
  for (const Kind kind : {Kind::kLayerNorm, Kind::kRmsNorm}) {
    for (const Shape& shape : {Shape{700, 1'025}, Shape{600, 4'096}, Shape{300, 12'288}}) {
      check_backward(kind, shape, DType::kBFloat16, {});
      check_backward(kind, shape, DType::kFloat32, {.beta = 1});
      check_backward(kind, shape, GetParam(), {.has_dx = false, .beta = 0.5f});
      check_backward(kind, shape, GetParam(), {.has_parameters = false});
      check_backward(kind, shape, GetParam(), {.beta = 1, .misaligned_by = 1});
    }
    check_backward(kind, {0, 16}, GetParam(), {.beta = 1});
  }
}

TEST_P(NormCudaTest, InPlace) {
  const Shape shape{600, 4'096};
  const Tensor x = random_normal(shape, {.seed = 1, .dtype = GetParam()});
  const Tensor w = random_normal({4'096}, {.seed = 2, .mean = 1, .dtype = GetParam()});
  const Tensor row = random_normal({600}, {.seed = 3, .mean = 1, .stddev = 0.1f});
  expect_twins({x, row, row, w, w},
               [](std::vector<Tensor>& t, Stream stream) {
                 kernels::layer_norm_forward(t[0].view(), t[1].view(), t[2].view(), t[0].view(),
                                             t[3].view(), t[4].view(), 0, 1e-5f, stream);
               },
               {.tolerance = norm_tolerance_for(GetParam(), shape), .what = "forward, y is x"});
  const Tensor dy = random_normal(shape, {.seed = 4, .dtype = GetParam()});
  for (const size_t dx : {size_t{0}, size_t{1}}) {
    expect_twins({dy, x, row, row, w},
                 [&](std::vector<Tensor>& t, Stream stream) {
                   kernels::layer_norm_backward(t[dx].view(), TensorView{}, TensorView{},
                                                t[0].view(), t[1].view(), t[2].view(), t[3].view(),
                                                t[4].view(), 0, 0, TensorView{}, stream);
                 },
                 {.tolerance = norm_tolerance_for(GetParam(), shape),
                  .what = dx == 0 ? "backward, dx is dy" : "backward, dx is x"});
  }
}

TEST_P(NormCudaTest, ParameterGradientsHaveTheSameBitsEveryTime) {
  const Tensor x = random_normal({4'099, 1'024}, {.seed = 1, .dtype = GetParam()}).to(stream());
  const Tensor dy = random_normal({4'099, 1'024}, {.seed = 2, .dtype = GetParam()}).to(stream());
  const Tensor row = random_normal({4'099}, {.seed = 3, .mean = 1}).to(stream());
  const Tensor weight = random_normal({1'024}, {.seed = 4}).to(stream());
  const auto run = [&] {
    Tensor dweight({1'024}, DType::kFloat32, stream());
    Tensor dbias({1'024}, DType::kFloat32, stream());
    const int64_t bytes = kernels::norm_backward_workspace_bytes(x.shape(), stream());
    Tensor workspace({bytes}, DType::kUInt8, stream());
    kernels::layer_norm_backward(TensorView{}, dweight.view(), dbias.view(), dy.view(), x.view(),
                                 row.view(), row.view(), weight.view(), 0, 0, workspace.view(),
                                 stream());
    return std::pair(dweight.to(Stream{}), dbias.to(Stream{}));
  };
  const auto first = run();
  for (int i = 0; i < 10; ++i) {
    const auto again = run();
    expect_identical(again.first, first.first, "dweight");
    expect_identical(again.second, first.second, "dbias");
  }
}

// Rows whose other columns are on another rank: the sums of rows are twice those of this rank.
TEST_P(NormCudaTest, SpreadRmsNorm) {
  for (const Shape& shape : {Shape{0, 8}, Shape{1, 1}, Shape{77, 33}, Shape{513, 1'024}}) {
    const int64_t rows = shape[0];
    const kernels::SpreadNorm norm = {
        .columns = 2 * shape[1], .weight_offset = 1, .epsilon = 1e-3f};
    const auto twice = [](Tensor& sums, Stream stream) {
      kernels::scale(sums.view(), sums.view(), 2, stream);
    };
    expect_twins({zeros(shape, GetParam(), Stream{}), zeros({rows}, DType::kFloat32, Stream{}),
                  zeros({rows}, DType::kFloat32, Stream{}), zeros(shape, GetParam(), Stream{}),
                  zeros(shape, DType::kFloat32, Stream{}),
                  random_normal(shape, {.seed = 1, .dtype = GetParam()}),
                  random_normal(shape, {.seed = 2, .dtype = GetParam()}),
                  random_normal({shape[1]}, {.seed = 3, .dtype = GetParam()})},
                 [&](std::vector<Tensor>& t, Stream stream) {
                   Tensor& sums = t[1];
                   kernels::row_squares(sums.view(), t[5].view(), stream);
                   twice(sums, stream);
                   kernels::spread_norm_forward(t[0].view(), t[2].view(), t[5].view(), sums.view(),
                                                t[7].view(), norm, stream);
                   kernels::spread_norm_dots(sums.view(), t[6].view(), t[5].view(), t[2].view(),
                                             t[7].view(), norm, stream);
                   twice(sums, stream);
                   kernels::spread_norm_backward(t[3].view(), t[4].view(), t[6].view(), t[5].view(),
                                                 t[2].view(), sums.view(), t[7].view(), norm,
                                                 stream);
                 },
                 {.tolerance = norm_tolerance_for(GetParam(), shape), .what = shape.str()});
  }
}

INSTANTIATE_TEST_SUITE_P(Dtypes, NormCudaTest, kTrainingDtypes, dtype_name);

}  // namespace
}  // namespace megatron

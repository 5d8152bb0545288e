#include "megatron/kernels/residual_norm.h"

#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "megatron/kernels/dropout.h"
#include "megatron/kernels/norm.h"
#include "tests/kernels/cuda/twin.h"

namespace megatron {
namespace {

using kernels::NormParameters;

// Rows that have no kernel of their own (not whole packs, too long), a warp's, several warps', a
// block's.
const Shape kResidualNormShapes[] = {{0, 2, 8},     {5, 1, 3},      {3, 2, 8},     {101, 3, 256},
                                     {65, 2, 512},  {300, 3, 1024}, {35, 2, 2048}, {17, 3, 2056},
                                     {50, 2, 4096}, {9, 3, 4104},   {21, 1, 8192}, {3, 1, 12'288}};

Tolerance residual_norm_tolerance_for(DType dtype, const Shape& shape) {
  const Tolerance sums = Tolerance{.relative = 1e-5, .absolute = 1e-5}.for_terms(
      std::max<int64_t>({shape[0] * shape[1], shape[2], 1}));
  const Tolerance rounding = tolerance_of(dtype);
  return {std::max(sums.relative, rounding.relative), std::max(sums.absolute, rounding.absolute)};
}

// Of 16-bit gradients against fp32 ones: dx, dbranch and the sums over rows. Separate kernels round
// dx, of about 8 at most, before something is added to it, and sum up rounded numbers.
std::vector<Tolerance> tolerances_for(DType dtype, const Shape& shape) {
  const Tolerance rounding = tolerance_of(dtype);
  const bool is_one_kernel = shape[2] % 8 == 0 && shape[2] <= 8192;
  const double unit = is_one_kernel ? 0 : rounding.relative;
  const double rows = std::sqrt(static_cast<double>(std::max<int64_t>(shape[0] * shape[1], 1)));
  const Tolerance elements = {rounding.relative, rounding.absolute + 2 * unit};
  const Tolerance sums = {1e-4, 1e-4 * rows + 4 * unit * rows};
  return {elements, elements, sums, sums, sums};
}

struct ResidualNormKind {
  DType stream, branch;
  bool is_rms_norm = false;
  bool has_bias = true;
  float dropout = 0;
  int64_t misaligned_by = 0;
};

std::string text_of(const ResidualNormKind& kind, const Shape& shape) {
  return shape.str() + " stream " + std::string(name_of(kind.stream)) + " branch " +
         std::string(name_of(kind.branch)) + (kind.is_rms_norm ? " rms" : " layer") +
         (kind.has_bias ? " bias" : "") + " dropout " + std::to_string(kind.dropout);
}

DropoutKey key_of(const ResidualNormKind& kind) {
  return {.key = 77, .first_sample = 3, .probability = kind.dropout, .first_row = 11};
}

NormParameters parameters(const ResidualNormKind& kind, const Tensor& weight, const Tensor& bias) {
  return {weight.view(), kind.is_rms_norm ? ConstView{} : bias.view(), 1.0f, 1e-5f};
}

class ResidualNormCudaTest : public CudaTest {
 protected:
  // x, y, mean, rstd, branch, bias, residual, weight, norm bias
  static std::vector<Tensor> forward_tensors(const ResidualNormKind& kind, const Shape& shape) {
    const int64_t rows = shape[0] * shape[1];
    const Shape h = {shape[2]};
    return {zeros(shape, kind.stream, Stream{}),
            zeros(shape, kind.branch, Stream{}),
            zeros({rows}, DType::kFloat32, Stream{}),
            zeros({rows}, DType::kFloat32, Stream{}),
            random_normal(shape, {.seed = 1, .dtype = kind.branch}),
            random_normal(h, {.seed = 2, .dtype = kind.branch}),
            random_normal(shape, {.seed = 3, .mean = 1, .dtype = kind.stream}),
            random_normal(h, {.seed = 4, .dtype = kind.branch}),
            random_normal(h, {.seed = 5, .dtype = kind.branch})};
  }
  static void forward(const ResidualNormKind& kind, std::vector<Tensor>& t, Stream stream) {
    kernels::residual_norm_forward(
        t[0].view(), t[1].view(), kind.is_rms_norm ? TensorView{} : t[2].view(), t[3].view(),
        t[4].view(), kind.has_bias ? ConstView(t[5].view()) : ConstView{}, t[6].view(),
        parameters(kind, t[7], t[8]), key_of(kind), stream);
  }

  // dx, dbranch, dbias, dweight, dnorm_bias, dx_past, dy, x, mean, rstd, weight, norm bias
  static std::vector<Tensor> backward_tensors(const ResidualNormKind& kind, const Shape& shape) {
    const int64_t rows = shape[0] * shape[1];
    const Shape h = {shape[2]};
    return {zeros(shape, kind.stream, Stream{}),
            zeros(shape, kind.branch, Stream{}),
            random_normal(h, {.seed = 1}),
            random_normal(h, {.seed = 2}),
            random_normal(h, {.seed = 3}),
            random_normal(shape, {.seed = 4, .dtype = kind.stream}),
            random_normal(shape, {.seed = 5, .dtype = kind.branch}),
            random_normal(shape, {.seed = 6, .mean = 1, .stddev = 2, .dtype = kind.stream}),
            random_normal({rows}, {.seed = 7, .mean = 1, .stddev = 0.1f}),
            random_normal({rows}, {.seed = 8, .mean = 0.5f, .stddev = 0.05f}),
            random_normal(h, {.seed = 9, .dtype = kind.branch}),
            random_normal(h, {.seed = 10, .dtype = kind.branch})};
  }
  static void backward(const ResidualNormKind& kind, float beta, bool has_past,
                       std::vector<Tensor>& t, Stream stream) {
    const bool is_changed = kind.dropout > 0 || kind.stream != kind.branch;
    Tensor workspace({kernels::residual_norm_backward_workspace_bytes(t[7].shape(), stream)},
                     DType::kUInt8, stream);
    kernels::residual_norm_backward({.dx = t[0].view(),
                                     .dbranch = is_changed ? t[1].view() : TensorView{},
                                     .dbias = kind.has_bias ? t[2].view() : TensorView{},
                                     .dweight = t[3].view(),
                                     .dnorm_bias = kind.is_rms_norm ? TensorView{} : t[4].view(),
                                     .bias_beta = 1 - beta,
                                     .norm_beta = beta},
                                    has_past ? ConstView(t[5].view()) : ConstView{}, t[6].view(),
                                    t[7].view(), kind.is_rms_norm ? TensorView{} : t[8].view(),
                                    t[9].view(), parameters(kind, t[10], t[11]), key_of(kind),
                                    workspace.view(), stream);
  }

  void check(const ResidualNormKind& kind, const Shape& shape) const {
    const DType coarse = kind.branch == DType::kFloat32 ? kind.stream : kind.branch;
    expect_twins(forward_tensors(kind, shape),
                 [&](auto& t, Stream stream) { forward(kind, t, stream); },
                 {.tolerance = residual_norm_tolerance_for(coarse, shape),
                  .misaligned_by = kind.misaligned_by,
                  .what = "forward " + text_of(kind, shape)});
    for (const bool has_past : {true, false}) {
      const float beta = has_past ? 1.0f : 0.0f;
      const auto run = [&](auto& t, Stream stream) { backward(kind, beta, has_past, t, stream); };
      const std::string what = "backward " + text_of(kind, shape);
      if (coarse != DType::kFloat32) {
        expect_as_in_fp32(backward_tensors(kind, shape), run, tolerances_for(coarse, shape), what);
        continue;
      }
      expect_twins(backward_tensors(kind, shape), run,
                   {.tolerance = residual_norm_tolerance_for(coarse, shape),
                    .misaligned_by = kind.misaligned_by,
                    .what = what});
    }
  }
};

constexpr DType kFp32 = DType::kFloat32;
constexpr DType kBf16 = DType::kBFloat16;
constexpr DType kFp16 = DType::kFloat16;

TEST_F(ResidualNormCudaTest, EveryShapeAndDtype) {
  for (const Shape& shape : kResidualNormShapes) {
    for (const ResidualNormKind& kind :
         {ResidualNormKind{kFp32, kFp32}, ResidualNormKind{kBf16, kBf16},
          ResidualNormKind{kFp16, kFp16}, ResidualNormKind{kFp32, kBf16},
          ResidualNormKind{kFp32, kFp16}}) {
      check(kind, shape);
    }
  }
}

TEST_F(ResidualNormCudaTest, EveryKind) {
  for (const Shape& shape : {Shape{37, 2, 1024}, Shape{19, 2, 5120}, Shape{5, 2, 35}}) {
    for (const bool is_rms_norm : {true, false}) {
      for (const bool has_bias : {true, false}) {
        for (const float dropout : {0.0f, 0.2f}) {
          check({kBf16, kBf16, is_rms_norm, has_bias, dropout}, shape);
          check({kFp32, kFp32, is_rms_norm, has_bias, dropout}, shape);
          check({kFp32, kBf16, is_rms_norm, has_bias, dropout}, shape);
        }
      }
    }
  }
}

TEST_F(ResidualNormCudaTest, AddressesThatAreNotMultiplesOfSixteenBytes) {
  check({.stream = kFp32, .branch = kFp32, .dropout = 0.2f, .misaligned_by = 1}, {37, 2, 1024});
}

// With a branch in parts the bits are those of their sum in fp32.
TEST_F(ResidualNormCudaTest, ABranchInParts) {
  for (const DType dtype : {kBf16, kFp16, kFp32}) {
    for (const Shape& shape : {Shape{1, 1, 8}, Shape{32, 1, 1600}, Shape{16, 4, 4096}}) {
      for (const int64_t num_parts : {1, 2, 5, 8}) {
        const ResidualNormKind kind{dtype, dtype, num_parts == 2, num_parts != 5,
                                    num_parts == 8 ? 0.2f : 0};
        SCOPED_TRACE(text_of(kind, shape) + " parts " + std::to_string(num_parts));
        ASSERT_TRUE(kernels::residual_norm_adds_parts(shape, num_parts, stream()));
        const Tensor parts = random_normal({num_parts, shape[0], shape[1], shape[2]}, {.seed = 9});
        Tensor sum = zeros(shape, kFp32, Stream{});
        for (int64_t i = 0; i < sum.numel(); ++i) {
          float total = 0;
          for (int64_t part = 0; part < num_parts; ++part) {
            total += parts.span<float>()[static_cast<size_t>(part * sum.numel() + i)];
          }
          sum.span<float>()[static_cast<size_t>(i)] = total;
        }
        std::vector<Tensor> one = forward_tensors(kind, shape);
        for (Tensor& x : one) x = x.to(stream());
        std::vector<Tensor> two;
        for (const Tensor& x : one) two.push_back(copied(x));
        one[4] = parts.to(stream());
        forward(kind, one, stream());
        two[4] = sum.reshape({1, shape[0], shape[1], shape[2]}).to(stream());
        forward(kind, two, stream());
        for (size_t i = 0; i < 4; ++i) {
          expect_identical(one[i].to(Stream{}), two[i].to(Stream{}), "tensor " + std::to_string(i));
        }
        if (dtype != kFp32) continue;
        two[4] = sum.to(stream());
        forward(kind, two, stream());
        for (size_t i = 0; i < 4; ++i) {
          expect_close(one[i].to(Stream{}), two[i].to(Stream{}),
                       residual_norm_tolerance_for(kFp32, shape));
        }
      }
    }
  }
  EXPECT_FALSE(kernels::residual_norm_adds_parts({65, 1, 1600}, 5, stream()));
  EXPECT_FALSE(kernels::residual_norm_adds_parts({32, 1, 1601}, 5, stream()));
  EXPECT_FALSE(kernels::residual_norm_adds_parts({32, 1, 4104}, 5, stream()));
  EXPECT_FALSE(kernels::residual_norm_adds_parts({32, 1, 1600}, 9, stream()));
}

// The fused kernel is bit-equal to the separate kernels.
TEST_F(ResidualNormCudaTest, ForwardHasTheBitsOfTheSeparateKernels) {
  for (const ResidualNormKind& kind : {ResidualNormKind{kBf16, kBf16, false, true, 0.1f},
                                       ResidualNormKind{kBf16, kBf16, true, false},
                                       ResidualNormKind{kFp32, kBf16, false, true, 0.1f}}) {
    std::vector<Tensor> one = forward_tensors(kind, {130, 4, 1024});
    for (Tensor& x : one) x = x.to(stream());
    std::vector<Tensor> two;
    for (const Tensor& x : one) two.push_back(copied(x));
    EXPECT_TRUE(kernels::cuda::residual_norm_forward(
        one[0].view(), one[1].view(), kind.is_rms_norm ? TensorView{} : one[2].view(),
        one[3].view(), one[4].view(), kind.has_bias ? ConstView(one[5].view()) : ConstView{},
        one[6].view(), parameters(kind, one[7], one[8]), key_of(kind), stream()));
    kernels::bias_dropout_add_forward(two[0].view(), two[4].view(),
                                      kind.has_bias ? ConstView(two[5].view()) : ConstView{},
                                      two[6].view(), key_of(kind), stream());
    if (kind.is_rms_norm) {
      kernels::rms_norm_forward(two[1].rows(), two[3].view(), two[0].rows(), two[7].view(), 1,
                                1e-5f, stream());
    } else {
      kernels::layer_norm_forward(two[1].rows(), two[2].view(), two[3].view(), two[0].rows(),
                                  two[7].view(), two[8].view(), 1, 1e-5f, stream());
    }
    for (size_t i = 0; i < 4; ++i) {
      expect_identical(one[i].to(Stream{}), two[i].to(Stream{}), "tensor " + std::to_string(i));
    }
  }
}

TEST_F(ResidualNormCudaTest, BackwardIsOneKernelAndGivesTheSameBitsEveryTime) {
  const ResidualNormKind kind{kBf16, kBf16, false, true, 0.1f};
  std::vector<Tensor> first;
  for (int run = 0; run < 4; ++run) {
    std::vector<Tensor> t = backward_tensors(kind, {1024, 4, 1024});
    for (Tensor& x : t) x = x.to(stream());
    Tensor workspace({kernels::residual_norm_backward_workspace_bytes(t[7].shape(), stream())},
                     DType::kUInt8, stream());
    EXPECT_TRUE(kernels::cuda::residual_norm_backward(
        {.dx = t[0].view(),
         .dbranch = t[1].view(),
         .dbias = t[2].view(),
         .dweight = t[3].view(),
         .dnorm_bias = t[4].view(),
         .bias_beta = 1,
         .norm_beta = 1},
        t[5].view(), t[6].view(), t[7].view(), t[8].view(), t[9].view(),
        parameters(kind, t[10], t[11]), key_of(kind), workspace.view(), stream()));
    std::vector<Tensor> results;
    for (size_t i = 0; i < 5; ++i) results.push_back(t[i].to(Stream{}));
    if (first.empty()) first = results;
    for (size_t i = 0; i < 5; ++i) {
      expect_identical(results[i], first[i], "tensor " + std::to_string(i));
    }
  }
}

}  // namespace
}  // namespace megatron

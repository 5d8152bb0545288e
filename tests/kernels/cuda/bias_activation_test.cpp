#include "megatron/kernels/bias_activation.h"

#include <algorithm>
#include <vector>

#include "megatron/kernels/elementwise.h"
#include "tests/kernels/cuda/twin.h"

namespace megatron {
namespace {

constexpr Activation kActivations[] = {Activation::kGeluTanh,
                                       Activation::kGeluErf,
                                       Activation::kGeluOnnx,
                                       Activation::kSquaredRelu,
                                       Activation::kRelu,
                                       Activation::kSwiglu,
                                       Activation::kGeglu,
                                       Activation::kLiglu,
                                       Activation::kReglu,
                                       Activation::kSwigluSecond,
                                       Activation::kGegluTanhFirst,
                                       Activation::kQuickGeglu,
                                       Activation::kClampedQuickGeglu};

// Rows and width of y.
const Shape kShapes[] = {{0, 8}, {8, 0},       {1, 1},     {5, 3},      {7, 127},
                         {3, 8}, {200, 1'025}, {9, 2'056}, {513, 4'096}};

using BiasActivationCudaTest = CudaDtypeTest;

Tolerance tolerance_for(DType dtype, Activation activation) {
  if (dtype != DType::kFloat32) return tolerance_of(dtype);
  // The CPU's tanh GELU cancels where x is far below 0; the other half multiplies the
  // difference: 1.13e-5 on an H200.
  const double factor = activation == Activation::kGegluTanhFirst ? 2 : 1;
  return {.relative = 1e-5, .absolute = 1e-5 * factor};
}

std::string what(Activation activation, const Shape& shape, bool has_bias) {
  return "activation " + std::to_string(static_cast<int>(activation)) + " y " + shape.str() +
         (has_bias ? " with bias" : " without bias");
}

// `dbias`, if any, gets the sums beside what it holds.
void backward(Tensor& dx, Tensor* dbias, const Tensor& dy, const Tensor& x, ConstView bias,
              Activation activation, Stream stream) {
  Tensor workspace({kernels::bias_activation_backward_workspace_bytes(x.shape(), stream)},
                   DType::kUInt8, stream);
  kernels::bias_activation_backward(dx.view(), dbias != nullptr ? dbias->view() : TensorView{},
                                    dy.view(), x.view(), bias, activation, 1, workspace.view(),
                                    stream);
}

TEST_P(BiasActivationCudaTest, ForwardAndBackward) {
  for (const Activation activation : kActivations) {
    for (const Shape& shape : kShapes) {
      const int64_t width = shape[1] * (is_gated(activation) ? 2 : 1);
      const Tensor x =
          random_normal({shape[0], width}, {.seed = 1, .stddev = 3, .dtype = GetParam()});
      const Tensor bias = random_normal({width}, {.seed = 2, .dtype = GetParam()});
      const Tensor dy = random_normal(shape, {.seed = 3, .dtype = GetParam()});
      for (const bool has_bias : {false, true}) {
        for (const int64_t misaligned_by : {0, 1}) {
          expect_twins({zeros(shape, GetParam(), Stream{}),
                        zeros({shape[0], width}, GetParam(), Stream{}), dy, x, bias},
                       [&](std::vector<Tensor>& t, Stream stream) {
                         const ConstView b = has_bias ? ConstView(t[4].view()) : ConstView{};
                         kernels::bias_activation_forward(t[0].view(), t[3].view(), b, activation,
                                                          stream);
                         backward(t[1], nullptr, t[2], t[3], b, activation, stream);
                       },
                       {.tolerance = tolerance_for(GetParam(), activation),
                        .misaligned_by = misaligned_by,
                        .what = what(activation, shape, has_bias)});
        }
      }
    }
  }
}

TEST_P(BiasActivationCudaTest, InPlaceWithABiasOfAnotherDtype) {
  for (const Activation activation : kActivations) {
    const Shape shape{65, 264};
    const int64_t width = shape[1] * (is_gated(activation) ? 2 : 1);
    const Tensor x =
        random_normal({shape[0], width}, {.seed = 1, .stddev = 3, .dtype = GetParam()});
    expect_twins({x, random_normal(shape, {.seed = 2, .dtype = GetParam()}),
                  random_normal({width}, {.seed = 3}), x},
                 [&](std::vector<Tensor>& t, Stream stream) {
                   backward(t[0], nullptr, t[1], t[0], t[2].view(), activation, stream);
                   if (!is_gated(activation)) {
                     kernels::bias_activation_forward(t[3].view(), t[3].view(), t[2].view(),
                                                      activation, stream);
                   }
                 },
                 {.tolerance = tolerance_for(GetParam(), activation),
                  .what = what(activation, shape, true)});
  }
}

// The sum of the rows of dx as the GPU stored it, which rounds dx like the CPU or next to it.
TEST_P(BiasActivationCudaTest, GradientOfTheBias) {
  for (const Activation activation : kActivations) {
    for (const Shape& shape : kShapes) {
      const int64_t width = shape[1] * (is_gated(activation) ? 2 : 1);
      for (const int64_t misaligned_by : {0, 1}) {
        // Elements of an odd address, as another view of one tensor has them.
        const auto there = [&](const Shape& of, uint64_t seed) {
          Tensor all =
              random_normal({misaligned_by + of.numel()}, {.seed = seed, .dtype = GetParam()})
                  .to(stream());
          return all.slice(misaligned_by, of.numel()).reshape(of);
        };
        const Tensor x = there({shape[0], width}, 1);
        const Tensor dy = there(shape, 2);
        const Tensor before = random_normal({width}, {.seed = 3});
        std::vector<Tensor> sums;
        Tensor dx = there({shape[0], width}, 4);
        for (int run = 0; run < 2; ++run) {
          Tensor dbias = before.to(stream());
          backward(dx, &dbias, dy, x, ConstView{}, activation, stream());
          sums.push_back(dbias.to(Stream{}));
        }
        const std::string text = what(activation, shape, false);
        expect_identical(sums[0], sums[1], text + ", two runs");
        Tensor want = copied(before);
        const Tensor stored = dx.to(Stream{});
        kernels::sum_rows(want.view(), stored.view(), 1, Stream{});
        // Each order of a sum strays by roundings in fp32.
        expect_close(sums[0], want,
                     Tolerance{1e-6, 1e-5}.for_terms(std::max<int64_t>(shape[0], 16)), text);
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Dtypes, BiasActivationCudaTest, kTrainingDtypes, dtype_name);

}  // namespace
}  // namespace megatron

#include "megatron/parallel/tensor/fp8_linear.h"

#include <cmath>
#include <map>
#include <utility>
#include <vector>

#include "megatron/comm/threads.h"
#include "megatron/comm/transport.h"
#include "megatron/kernels/fp8_blocks.h"
#include "megatron/ops/bias_activation.h"
#include "megatron/ops/linear.h"
#include "megatron/parallel/fp8_scaling.h"
#include "megatron/parallel/tensor/linear.h"
#include "tests/parallel/shards.h"

namespace megatron {
namespace {

constexpr int64_t kIn = 32;
constexpr int64_t kOut = 48;
constexpr int64_t kWide = 64;

Fp8Config hybrid(Fp8Recipe recipe = Fp8Recipe::kDelayed) {
  return {.format = Fp8Format::kHybrid, .recipe = recipe, .amax_history_len = 4};
}

// x as a tensor of the FP8 type holds it, with the scale of its own amax.
Tensor rounded(const Tensor& x, DType dtype) {
  const auto amax = static_cast<float>(largest(x));
  Tensor y = copied(x);
  dispatch_float8(dtype, "test", [&]<class T>() {
    const float scale = T::largest() / amax;
    for (float& v : y.span<float>()) v = static_cast<float>(T(v * scale)) / scale;
  });
  return y;
}

// x as blocks of E4M3 hold it, read along its last axis.
Tensor rounded_blocks(const Tensor& x, kernels::Fp8Blocks blocks, DType dtype) {
  Tensor y(x.rows().shape, dtype, Stream{});
  Tensor inverses(kernels::fp8_scales_shape(blocks, y.shape()), DType::kFloat32, Stream{});
  kernels::fp8_quantize_blocks({.blocks = blocks, .rows = {y.view(), inverses.view()}},
                               {.x = x.rows()}, Stream{});
  Tensor wide = copied(x);
  dispatch_float8(dtype, "test", [&]<class T>() {
    for (int64_t i = 0; i < x.numel(); ++i) {
      const int64_t place =
          kernels::fp8_scale_place(blocks, i / y.size(1), i % y.size(1), y.size(0), y.size(1));
      wide.span<float>()[static_cast<size_t>(i)] =
          static_cast<float>(y.span<T>()[static_cast<size_t>(i)]) *
          inverses.span<float>()[static_cast<size_t>(place)];
    }
  });
  return wide;
}

// Two layers and what lies between them, as in an MLP.
class Layers final : public Module {
 public:
  Layers(const Fp8Config& fp8, const TensorParallel& tp, int64_t width = kWide)
      : tp_(tp),
        fc1(kIn, width, tp, {.init = Init::normal(0.2), .stacked_parts = width / kWide, .fp8 = fp8},
            {}),
        fc2(kWide, kOut, tp, {.init = Init::normal(0.2), .fp8 = fp8}, {}) {
    add_child("fc1", fc1);
    add_child("fc2", fc2);
    initialize(*this, 7);
    Tensor bias = fc1.bias().data();
    for (int64_t i = 0; i < bias.numel(); ++i) bias.span<float>()[static_cast<size_t>(i)] = 0.1f;
  }

  Variable in_one_op(const Variable& x, Activation activation) const {
    return fp8_mlp(x, {*fc1.fp8(), fc1.weight(), fc1.bias()}, activation,
                   {*fc2.fp8(), fc2.weight()}, tp_);
  }
  Variable in_parts(const Variable& x, Activation activation) const {
    return fc2.forward_without_bias(bias_activation(fc1.forward(x), Variable(), activation));
  }

 private:
  TensorParallel tp_;

 public:
  ColumnParallelLinear fc1;
  RowParallelLinear fc2;
};

Fp8Scaling scaling_of(const Module& module, const Fp8Config& config,
                      const TensorParallel& tp = {}) {
  return Fp8Scaling({&module}, config, {.tensor = tp}, Stream{});
}

// The three products are exactly those of the rounded tensors, up to the order of fp32 sums. So dx
// and dweight are the derivatives of y with respect to the rounded x and weight, whose product
// linear() is tested with central differences.
TEST(Fp8LinearTest, MultipliesWhatRoundingLeaves) {
  const Layers layers(hybrid(Fp8Recipe::kTensorwise), {});
  Fp8Scaling scaling = scaling_of(layers, hybrid(Fp8Recipe::kTensorwise));
  scaling.quantize_weights();
  const Tensor x = random_normal({8, 2, kIn}, {.seed = 1});
  const Tensor dy = random_normal({8, 2, kWide}, {.seed = 2, .stddev = 1e-6f});
  const Variable in = Variable::leaf(x);
  const Variable y = layers.fc1.forward(in);
  backward(y, dy);

  const Variable x8 = Variable::leaf(rounded(x, DType::kFloat8E4M3));
  const Variable weight8 = Variable::leaf(rounded(layers.fc1.weight().data(), DType::kFloat8E4M3));
  const Variable want = linear(x8, weight8, layers.fc1.bias().detached());
  backward(want, rounded(dy, DType::kFloat8E5M2));
  expect_close(y.data(), want.data(), {1e-5, 1e-5}, "y");
  expect_close(in.grad(), x8.grad(), {1e-5, 1e-11}, "dx");
  expect_close(layers.fc1.weight().grad(), weight8.grad(), {1e-5, 1e-11}, "dweight");
  expect_close(layers.fc1.bias().grad(), sum_leading(dy), {1e-5, 1e-11}, "dbias");
}

// The same with scales of blocks: x and dy are rounded anew for the gradient of the weight, whose
// sum runs over rows.
TEST(Fp8LinearTest, MultipliesWhatRoundingOfBlocksLeaves) {
  constexpr auto kLines = kernels::Fp8Blocks::kLine;
  const Fp8Config config = hybrid(Fp8Recipe::kBlockwise);
  const Layers layers(config, {});
  scaling_of(layers, config).quantize_weights();
  const Tensor x = random_normal({72, 2, kIn}, {.seed = 1});
  const Tensor dy = random_normal({72, 2, kWide}, {.seed = 2, .stddev = 1e-6f});
  const Variable in = Variable::leaf(x);
  const Variable y = layers.fc1.forward(in);
  backward(y, dy);

  const Variable weight8(
      rounded_blocks(layers.fc1.weight().data(), kernels::Fp8Blocks::kSquare, DType::kFloat8E4M3));
  const Variable x8 = Variable::leaf(rounded_blocks(x, kLines, DType::kFloat8E4M3));
  const Variable want = linear(x8, weight8, layers.fc1.bias().detached());
  backward(want, rounded_blocks(dy, kLines, DType::kFloat8E5M2));
  expect_close(y.data(), want.data(), {1e-5, 1e-5}, "y");
  expect_close(in.grad(), x8.grad(), {1e-5, 1e-11}, "dx");

  const auto transposed = [](const Tensor& rows) {
    Tensor columns({rows.rows().size(1), rows.rows().size(0)}, rows.dtype(), Stream{});
    for (int64_t i = 0; i < rows.numel(); ++i) {
      columns.span<float>()[static_cast<size_t>(i % columns.size(0) * columns.size(1) +
                                                i / columns.size(0))] =
          rows.span<float>()[static_cast<size_t>(i)];
    }
    return columns;
  };
  const Variable dy_columns(rounded_blocks(transposed(dy), kLines, DType::kFloat8E5M2));
  const Variable x_columns(rounded_blocks(transposed(x), kLines, DType::kFloat8E4M3));
  const Tensor dweight = linear(dy_columns, x_columns, Variable()).data();
  expect_close(layers.fc1.weight().grad(), dweight, {1e-5, 1e-11}, "dweight");
  expect_close(layers.fc1.bias().grad(), sum_leading(dy), {1e-5, 1e-11}, "dbias");
}

// Three mantissa bits of each factor: errors are far below the values, and never zero.
TEST(Fp8LinearTest, IsCloseToTheLayerWithoutFp8) {
  for (const Fp8Recipe recipe : {Fp8Recipe::kTensorwise, Fp8Recipe::kBlockwise}) {
    const Layers layers(hybrid(recipe), {});
    scaling_of(layers, hybrid(recipe)).quantize_weights();
    const Variable x(random_normal({16, 4, kIn}, {.seed = 1}));
    const Tensor got = layers.fc1.forward(x).data();
    const Tensor want = linear(x, layers.fc1.weight(), layers.fc1.bias()).data();
    double error = 0;
    double size = 0;
    for (int64_t i = 0; i < got.numel(); ++i) {
      error += std::pow(element(got, i) - element(want, i), 2);
      size += std::pow(element(want, i), 2);
    }
    EXPECT_LT(std::sqrt(error / size), 0.05);
    EXPECT_GT(std::sqrt(error / size), 0.005);
  }
}

TEST(Fp8MlpTest, IsItsPartsInOneOp) {
  for (const auto& [activation, recipe] : {std::pair(Activation::kGeluTanh, Fp8Recipe::kTensorwise),
                                           std::pair(Activation::kSwiglu, Fp8Recipe::kTensorwise),
                                           std::pair(Activation::kGeluTanh, Fp8Recipe::kBlockwise),
                                           std::pair(Activation::kSwiglu, Fp8Recipe::kBlockwise)}) {
    const int64_t width = is_gated(activation) ? 2 * kWide : kWide;
    const Fp8Config config = hybrid(recipe);
    const Layers one(config, {}, width);
    const Layers other(config, {}, width);
    scaling_of(one, config).quantize_weights();
    scaling_of(other, config).quantize_weights();
    const Tensor dy = random_normal({8, 2, kOut}, {.seed = 2});
    const Variable x1 = Variable::leaf(random_normal({8, 2, kIn}, {.seed = 1}));
    const Variable x2 = Variable::leaf(x1.data());
    const Variable y1 = one.in_one_op(x1, activation);
    const Variable y2 = other.in_parts(x2, activation);
    backward(y1, dy);
    backward(y2, dy);
    expect_identical(y1.data(), y2.data(), "y");
    expect_identical(x1.grad(), x2.grad(), "dx");
    expect_identical(one.fc1.weight().grad(), other.fc1.weight().grad(), "dweight1");
    expect_identical(one.fc1.bias().grad(), other.fc1.bias().grad(), "dbias1");
    expect_identical(one.fc2.weight().grad(), other.fc2.weight().grad(), "dweight2");
  }
}

TEST(Fp8MlpTest, WithoutFp8WgradWeightsGetGradientsOfWideTensors) {
  Fp8Config config = hybrid(Fp8Recipe::kTensorwise);
  config.wgrad = false;
  const Layers layers(config, {});
  scaling_of(layers, config).quantize_weights();
  const Tensor x = random_normal({8, 2, kIn}, {.seed = 1});
  const Tensor dy = random_normal({8, 2, kWide}, {.seed = 2});
  backward(layers.fc1.forward(Variable::leaf(x)), dy);
  const Variable weight = Variable::leaf(layers.fc1.weight().data());
  backward(linear(Variable(x), weight, Variable()), dy);
  expect_close(layers.fc1.weight().grad(), weight.grad(), {1e-5, 1e-5}, "dweight");
}

// What one layer computes, with constants for weights.
struct Computed {
  Tensor y, dx;
  std::vector<Tensor> gradients;  // of the adapter
};

template <class Layer>
Computed computed(bool is_fp8, int64_t lora_rank) {
  const Fp8Config fp8 = is_fp8 ? hybrid(Fp8Recipe::kTensorwise) : Fp8Config();
  const Layer layer(kIn, kOut, {},
                    {.has_bias = false,
                     .init = Init::normal(0.2),
                     .fp8 = fp8,
                     .lora = {.rank = lora_rank, .scale = 0.5}},
                    {});
  initialize(layer, 7);
  for (Parameter& named : named_parameters(layer)) {
    if (!named.info.is_adapter) {
      named.variable.make_constant();
      continue;
    }
    Tensor values = named.variable.data();
    copy_into(values, random_normal(values.shape(), {.seed = 3, .stddev = 0.2f}));
  }
  scaling_of(layer, fp8).quantize_weights();
  const Variable x = Variable::leaf(random_normal({8, 2, kIn}, {.seed = 1}));
  const Variable y = layer.forward_without_bias(x);
  backward(y, random_normal({8, 2, kOut}, {.seed = 2}));
  Computed all{y.data(), x.grad(), {}};
  for (const Parameter& named : named_parameters(layer)) {
    if (named.info.is_adapter) all.gradients.push_back(named.variable.grad());
  }
  return all;
}

// Only the products of the layer itself are in FP8.
template <class Layer>
void expect_wide_adapter() {
  const Computed both = computed<Layer>(true, 4);
  const Computed fp8 = computed<Layer>(true, 0);
  const Computed adapter = computed<Layer>(false, 4);
  const Computed plain = computed<Layer>(false, 0);
  const auto expect_sum = [](const Tensor& got, const Tensor& a, const Tensor& b,
                             const Tensor& less) {
    for (int64_t i = 0; i < got.numel(); ++i) {
      ASSERT_NEAR(element(got, i), element(a, i) + element(b, i) - element(less, i), 2e-5);
    }
  };
  expect_sum(both.y, fp8.y, adapter.y, plain.y);
  expect_sum(both.dx, fp8.dx, adapter.dx, plain.dx);
  EXPECT_NE(element(both.y, 0), element(adapter.y, 0)) << "FP8 rounds";
  ASSERT_EQ(both.gradients.size(), 2u);
  for (size_t i = 0; i < 2; ++i) {
    expect_identical(both.gradients[i], adapter.gradients[i], "adapter");
  }
}

TEST(Fp8LinearTest, AdaptersStayWide) {
  expect_wide_adapter<ColumnParallelLinear>();
  expect_wide_adapter<RowParallelLinear>();
}

// The first iteration uses the amax of each tensor, and leaves a history for the next ones.
TEST(Fp8ScalingTest, TheNextIterationUsesTheAmaxOfThisOne) {
  const Layers layers(hybrid(), {});
  Fp8Scaling scaling = scaling_of(layers, hybrid());
  EXPECT_FALSE(scaling.is_settled());
  const auto iterate = [&](int64_t iteration, float size) {
    scaling.quantize_weights();
    const Variable x = Variable::leaf(full({16, 1, kIn}, size, DType::kFloat32, Stream{}));
    const Variable y = layers.fc1.forward(x);
    backward(y, full(y.shape(), 1e-3f, DType::kFloat32, Stream{}));
    scaling.finish_iteration(iteration);
    return y.data();
  };
  iterate(0, 2);
  EXPECT_TRUE(scaling.is_settled());
  const Fp8Layer& fp8 = *layers.fc1.fp8();
  EXPECT_FLOAT_EQ(static_cast<float>(element(fp8.scales(), 0)), 224);
  EXPECT_FLOAT_EQ(static_cast<float>(element(fp8.scales(), 2)), 57344 / 1e-3f);
  EXPECT_FLOAT_EQ(static_cast<float>(element(fp8.scales(), 1)),
                  448 / static_cast<float>(largest(layers.fc1.weight().data())));
  iterate(1, 0.5f);
  EXPECT_FLOAT_EQ(static_cast<float>(element(fp8.scales(), 0)), 896);
  EXPECT_EQ(element(fp8.amax_history(), 0), 2);
  EXPECT_EQ(element(fp8.amax_history(), 3), 0.5);

  // What exceeds the scale's range saturates.
  const Tensor y = iterate(2, 1.0f);
  const Tensor saturated = iterate(3, 1.0f);  // the scale knows 1 now
  EXPECT_LT(largest(y), largest(saturated));
}

TEST(Fp8ScalingTest, EvaluationLeavesNoTrace) {
  const Layers layers(hybrid(), {});
  Fp8Scaling scaling = scaling_of(layers, hybrid());
  scaling.quantize_weights();
  const Variable x = Variable::leaf(random_normal({16, 1, kIn}, {.seed = 1}));
  backward(layers.fc1.forward(x), random_normal({16, 1, kWide}, {.seed = 2}));
  {
    const NoGrad no_grad;
    scaling.quantize_weights();
    layers.fc1.forward(Variable(full({16, 1, kIn}, 100.0f, DType::kFloat32, Stream{})));
  }
  scaling.finish_iteration(0);
  EXPECT_LT(element(layers.fc1.fp8()->amax_history(), 0), 10);
}

std::vector<Tensor> buffers_of(const Module& module) {
  std::vector<Tensor> buffers;
  for (const Parameter& tensor : named_tensors(module)) {
    if (tensor.info.role == ParameterRole::kBuffer) buffers.push_back(tensor.variable.data());
  }
  return buffers;
}

// With the scales of one rank, several ranks compute what it does and come to the same new scales:
// an amax is that of all ranks.
TEST(Fp8ScalingTest, RanksMatchOneRank) {
  const Tensor x = random_normal({16, 4, kIn}, {.seed = 1});
  const Tensor dy = random_normal({16, 4, kOut}, {.seed = 2, .stddev = 1e-4f});
  const auto iterate = [&](const Layers& layers, Fp8Scaling& scaling, const TensorParallel& tp,
                           int64_t iteration) {
    scaling.quantize_weights();
    const Variable in = Variable::leaf(own_slice(x, tp));
    const Variable y = layers.in_one_op(in, Activation::kGeluTanh);
    backward(y, own_slice(dy, tp));
    scaling.finish_iteration(iteration);
    return std::pair{y.data(), in.grad()};
  };
  const Layers whole(hybrid(), {});
  Fp8Scaling whole_scaling = scaling_of(whole, hybrid());
  iterate(whole, whole_scaling, {}, 0);
  std::vector<Tensor> start;
  for (const Tensor& buffer : buffers_of(whole)) start.push_back(copied(buffer));
  const auto [want_y, want_dx] = iterate(whole, whole_scaling, {}, 1);

  for (const int ranks : {1, 2, 4}) {
    for (const bool sequence_parallel : {false, true}) {
      comm::run_ranks(ranks, [&, want_y = want_y, want_dx = want_dx](const comm::Group& world) {
        const TensorParallel tp{.group = world, .sequence_parallel = sequence_parallel};
        const Layers layers(hybrid(), tp);
        std::vector<Tensor> buffers = buffers_of(layers);
        for (size_t i = 0; i < buffers.size(); ++i) copy_into(buffers[i], start[i]);
        Fp8Scaling scaling = scaling_of(layers, hybrid(), tp);
        const auto [y, dx] = iterate(layers, scaling, tp, 1);
        expect_close(y, own_slice(want_y, tp), {1e-5, 1e-5 * largest(want_y)}, "y");
        expect_close(dx, own_slice(want_dx, tp), {1e-5, 1e-5 * largest(want_dx)}, "dx");
        const std::vector<Tensor> want = buffers_of(whole);
        for (size_t i = 0; i < want.size(); ++i) expect_close(buffers[i], want[i], {1e-5, 0}, "");
      });
    }
  }
}

// The elements that a rank has gathered of each type.
std::map<DType, int64_t> gathered_by(const comm::Group& group) {
  std::map<DType, int64_t> counts;
  for (const auto& entry : group.transport().context().recorder.entries()) {
    const bool is_gather = entry.call.operation == comm::Operation::kAllGather;
    if (is_gather) counts[entry.call.dtype] += entry.call.count;
  }
  return counts;
}

// An input and a gradient that ranks round before they gather them are those that they round
// afterwards, without history, too; and they take one byte an element.
TEST(Fp8MlpTest, GatheringInFp8ChangesNoBit) {
  const Tensor x = random_normal({16, 4, kIn}, {.seed = 1});
  const Tensor dy = random_normal({16, 4, kOut}, {.seed = 2, .stddev = 1e-4f});
  for (const Fp8Recipe recipe :
       {Fp8Recipe::kDelayed, Fp8Recipe::kTensorwise, Fp8Recipe::kBlockwise}) {
    comm::run_ranks(2, [&](const comm::Group& world) {
      const Fp8Config config = hybrid(recipe);
      const auto trained = [&](const Layers& layers, const TensorParallel& tp) {
        Fp8Scaling scaling = scaling_of(layers, config, tp);
        Variable y, in;
        for (int64_t iteration = 0; iteration < 2; ++iteration) {
          scaling.quantize_weights();
          in = Variable::leaf(own_slice(x, tp));
          y = layers.in_one_op(in, Activation::kGeluTanh);
          backward(y, own_slice(dy, tp));
          scaling.finish_iteration(iteration);
        }
        return std::pair{y.data(), in.grad()};
      };
      const TensorParallel whole{.group = world};
      const TensorParallel divided{.group = world, .sequence_parallel = true};
      const Layers want(config, whole);
      const auto [want_y, want_dx] = trained(want, whole);
      EXPECT_TRUE(gathered_by(world).empty());
      const Layers got(config, divided);
      const auto [y, dx] = trained(got, divided);
      expect_identical(y, own_slice(want_y, divided), "y");
      expect_identical(dx, own_slice(want_dx, divided), "dx");
      expect_identical(got.fc1.weight().grad(), want.fc1.weight().grad(), "dweight1");
      expect_identical(got.fc2.weight().grad(), want.fc2.weight().grad(), "dweight2");
      std::map<DType, int64_t> gathered = gathered_by(world);
      const int64_t rows = 2 * x.numel() / kIn / 2;  // of a rank in two iterations
      if (recipe == Fp8Recipe::kBlockwise) {
        EXPECT_EQ(gathered, (std::map{std::pair{DType::kFloat32, rows * (kIn + kOut)}}));
      } else {
        EXPECT_EQ(gathered, (std::map{std::pair{DType::kFloat8E4M3, rows * kIn},
                                      std::pair{DType::kFloat8E5M2, rows * kOut}}));
      }
    });
  }
}

}  // namespace
}  // namespace megatron

#include "megatron/parallel/tensor/int8_linear.h"

#include <gmock/gmock.h>

#include <cmath>
#include <utility>
#include <vector>

#include "megatron/comm/threads.h"
#include "megatron/core/error.h"
#include "megatron/device/allocator.h"
#include "megatron/parallel/tensor/linear.h"
#include "tests/parallel/shards.h"

namespace megatron {
namespace {

constexpr int64_t kIn = 32;
constexpr int64_t kOut = 48;

// A column- and a row-parallel layer, and one that makes logits.
class Layers final : public Module {
 public:
  explicit Layers(const TensorParallel& tp = {})
      : fc1(kIn, kOut, tp, {.init = Init::normal(0.2)}, {}),
        fc2(kOut, kIn, tp, {.init = Init::normal(0.2)}, {}),
        head(kIn, kOut, tp,
             {.has_bias = false, .init = Init::normal(0.2), .role = ParameterRole::kOutputHead},
             {}) {
    add_child("fc1", fc1);
    add_child("fc2", fc2);
    add_child("head", head);
    initialize(*this, 7);
    Tensor bias = fc1.bias().data();
    for (float& value : bias.span<float>()) value = 0.1f;
  }

  ColumnParallelLinear fc1;
  RowParallelLinear fc2;
  ColumnParallelLinear head;
};

// The elements of a rounded weight.
Tensor rounded(const Tensor& weight) {
  const Int8Weight w = quantized_rows(weight);
  const auto* const numbers = static_cast<const int8_t*>(w.numbers.view().data);
  std::vector<float> elements;
  for (int64_t i = 0; i < weight.numel(); ++i) {
    elements.push_back(static_cast<float>(numbers[i] * element(w.scales, i / weight.size(1))));
  }
  return tensor_of(elements, weight.shape());
}

TEST(Int8LinearTest, LayersMultiplyByTheRoundedWeight) {
  const NoGrad no_grad;
  const Layers layers;
  const Layers want;
  for (Variable weight : {want.fc1.weight(), want.fc2.weight()}) {
    weight.set_data(rounded(weight.data()));
  }
  keep_weights_in_int8(layers, Stream{});
  EXPECT_TRUE(layers.fc1.has_int8_weight());
  EXPECT_FALSE(layers.head.has_int8_weight());
  const Variable x(random_normal({3, 2, kIn}, {.seed = 1}));
  const Tolerance sums = tolerance_of(DType::kFloat32).for_terms(kOut);
  expect_close(layers.fc1.forward(x).data(), want.fc1.forward(x).data(), sums);
  expect_close(layers.fc1.forward_without_bias(x).data(), want.fc1.forward_without_bias(x).data(),
               sums);
  const Variable wide(random_normal({3, 2, kOut}, {.seed = 2}));
  expect_close(layers.fc2.forward_without_bias(wide).data(),
               want.fc2.forward_without_bias(wide).data(), sums);
  expect_identical(layers.head.forward(x).data(), want.head.forward(x).data());
}

TEST(Int8LinearTest, RoundsOnce) {
  const Layers layers;
  keep_weights_in_int8(layers, Stream{});
  const Tensor before = layers.fc1.weight().data();
  keep_weights_in_int8(layers, Stream{});
  expect_identical(layers.fc1.weight().data(), before);
}

// Parameter: tensor-parallel size. A column-parallel layer has the whole layer's rows, a
// row-parallel one rounds its part of each row with a scale of its own.
class Int8RanksTest : public testing::TestWithParam<int> {};

TEST_P(Int8RanksTest, RanksRoundTheirParts) {
  const Layers whole;
  const Tensor x = random_normal({3, 2, kIn}, {.seed = 1});
  const Tensor wide = random_normal({3, 2, kOut}, {.seed = 2});
  keep_weights_in_int8(whole, Stream{});
  const Tensor columns = whole.fc1.forward(Variable(x)).data();
  const Tensor sums = Layers().fc2.forward_without_bias(Variable(wide)).data();
  const double scale = largest(Layers().fc2.weight().data()) / 127;
  comm::run_ranks(GetParam(), [&](const comm::Group& group) {
    const NoGrad no_grad;
    const TensorParallel tp{.group = group};
    const Layers layers(tp);
    keep_weights_in_int8(layers, Stream{});
    const Tensor own = layers.fc1.forward(Variable(x)).data();
    const Sharding last{.axis = 2, .index = tp.rank(), .count = tp.size()};
    expect_identical(own, shard_of(columns, last));
    const Tensor part = shard_of(wide, last);
    const Tensor y = layers.fc2.forward_without_bias(Variable(part)).data();
    for (int64_t row = 0; row < 6; ++row) {
      double sizes = 0;
      for (int64_t i = 0; i < kOut; ++i) sizes += std::abs(element(wide, row * kOut + i));
      for (int64_t i = row * kIn; i < (row + 1) * kIn; ++i) {
        EXPECT_LE(std::abs(element(y, i) - element(sums, i)), 0.50001 * scale * sizes + 1e-5);
      }
    }
  });
}
INSTANTIATE_TEST_SUITE_P(Sizes, Int8RanksTest, testing::Values(1, 2, 4));

TEST(Int8LinearTest, MemoryIsThatOfTheFormula) {
  const auto parameters = [] {
    return allocator_of(Stream{}.device)
        .stats()
        .by_category[static_cast<size_t>(MemoryCategory::kParameters)];
  };
  const int64_t before = parameters();
  const Layers layers;
  // Blocks of all these sizes are whole: nothing is rounded.
  EXPECT_EQ(parameters() - before, parameter_bytes(specs(layers), InferenceWeights::kModel));
  const int64_t after = parameter_bytes(specs(layers), InferenceWeights::kInt8);
  EXPECT_EQ(after, 2 * kIn * kOut + 4 * (kOut + kIn)      // rounded weights, scales
                       + 4 * (kOut + kIn + kIn * kOut));  // biases, logits
  keep_weights_in_int8(layers, Stream{});
  EXPECT_EQ(parameters() - before, after);
  // Two ranks: half of everything but the bias and the scales of the row-parallel layer.
  EXPECT_EQ(2 * parameter_bytes(specs(Layers()), InferenceWeights::kInt8, 2), after + 8 * kIn);
}

TEST(Int8LinearTest, RefusesGpus) {
  const Layers layers;
  EXPECT_EQ(message_of<ConfigError>([&] {
              keep_weights_in_int8(layers, Stream{.device = {DeviceType::kCuda, 0}});
            }),
            "--inference-weights int8 is for the CPU: no kernel for GPUs multiplies weights in "
            "int8; give --device cpu, or remove the flag");
}

}  // namespace
}  // namespace megatron

#include "megatron/parallel/tensor/rounded_linear.h"

#include <gmock/gmock.h>

#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "megatron/comm/threads.h"
#include "megatron/core/error.h"
#include "megatron/core/float8.h"
#include "megatron/device/allocator.h"
#include "megatron/parallel/tensor/linear.h"
#include "tests/parallel/shards.h"

namespace megatron {
namespace {

constexpr int64_t kRoundedLinearIn = 32;
constexpr int64_t kRoundedLinearOut = 48;

// A column- and a row-parallel layer, and one that makes logits.
class RoundedLinearLayers final : public Module {
 public:
  explicit RoundedLinearLayers(const TensorParallel& tp = {})
      : fc1(kRoundedLinearIn, kRoundedLinearOut, tp, {.init = Init::normal(0.2)}, {}),
        fc2(kRoundedLinearOut, kRoundedLinearIn, tp, {.init = Init::normal(0.2)}, {}),
        head(kRoundedLinearIn, kRoundedLinearOut, tp,
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

// The elements of a rounded matrix, whose rows may have further axes.
Tensor rounded_linear_rounded(const Tensor& x, InferenceWeights form) {
  const int64_t cols = x.size(-1);
  const RoundedWeight w = rounded_rows(x.reshape({x.numel() / cols, cols}), form);
  const void* const numbers = w.numbers.view().data;
  std::vector<float> elements;
  for (int64_t i = 0; i < x.numel(); ++i) {
    const float number = form == InferenceWeights::kInt8
                             ? static_cast<float>(static_cast<const int8_t*>(numbers)[i])
                             : static_cast<float>(static_cast<const Float8E4M3*>(numbers)[i]);
    elements.push_back(number * static_cast<float>(element(w.scales, i / cols)));
  }
  return tensor_of(elements, x.shape());
}

// What a layer multiplies: in FP8 its input is rounded, too.
Variable seen(const Variable& x, InferenceWeights form) {
  return form == InferenceWeights::kFp8 ? Variable(rounded_linear_rounded(x.data(), form)) : x;
}

class RoundedLinearTest : public testing::TestWithParam<InferenceWeights> {};

TEST_P(RoundedLinearTest, LayersMultiplyByTheRoundedWeight) {
  const NoGrad no_grad;
  const RoundedLinearLayers layers;
  const RoundedLinearLayers want;
  for (Variable weight : {want.fc1.weight(), want.fc2.weight()}) {
    weight.set_data(rounded_linear_rounded(weight.data(), GetParam()));
  }
  round_weights(layers, GetParam(), Stream{});
  EXPECT_TRUE(layers.fc1.has_rounded_weight());
  EXPECT_FALSE(layers.head.has_rounded_weight());
  const Variable x(random_normal({3, 2, kRoundedLinearIn}, {.seed = 1}));
  const Tolerance sums = tolerance_of(DType::kFloat32).for_terms(kRoundedLinearOut);
  expect_close(layers.fc1.forward(x).data(), want.fc1.forward(seen(x, GetParam())).data(), sums);
  expect_close(layers.fc1.forward_without_bias(x).data(),
               want.fc1.forward_without_bias(seen(x, GetParam())).data(), sums);
  const Variable wide(random_normal({3, 2, kRoundedLinearOut}, {.seed = 2}));
  expect_close(layers.fc2.forward_without_bias(wide).data(),
               want.fc2.forward_without_bias(seen(wide, GetParam())).data(), sums);
  expect_identical(layers.head.forward(x).data(), want.head.forward(x).data());
}

TEST_P(RoundedLinearTest, RoundsOnce) {
  const RoundedLinearLayers layers;
  round_weights(layers, GetParam(), Stream{});
  const Tensor before = layers.fc1.weight().data();
  round_weights(layers, GetParam(), Stream{});
  expect_identical(layers.fc1.weight().data(), before);
}

// Parameters: tensor-parallel size, form. A column-parallel layer has the whole layer's rows, a
// row-parallel one rounds its part of each row with a scale of its own.
class RoundedRanksTest : public testing::TestWithParam<std::tuple<int, InferenceWeights>> {};

TEST_P(RoundedRanksTest, RanksRoundTheirParts) {
  const auto [size, form] = GetParam();
  const RoundedLinearLayers whole;
  const Tensor x = random_normal({3, 2, kRoundedLinearIn}, {.seed = 1});
  const Tensor wide = random_normal({3, 2, kRoundedLinearOut}, {.seed = 2});
  round_weights(whole, form, Stream{});
  const Tensor columns = whole.fc1.forward(Variable(x)).data();
  comm::run_ranks(size, [&, form = form](const comm::Group& group) {
    const NoGrad no_grad;
    const TensorParallel tp{.group = group};
    const RoundedLinearLayers layers(tp);
    const RoundedLinearLayers want(tp);
    Variable weight = want.fc2.weight();
    weight.set_data(rounded_linear_rounded(weight.data(), form));
    round_weights(layers, form, Stream{});
    const Tolerance sums = tolerance_of(DType::kFloat32).for_terms(kRoundedLinearOut);
    const Sharding last = tp.sharding(2);
    const Tensor own = layers.fc1.forward(Variable(x)).data();
    expect_close(own, shard_of(columns, last), sums);
    if (form == InferenceWeights::kInt8) expect_identical(own, shard_of(columns, last));
    const Variable part(shard_of(wide, last));
    expect_close(layers.fc2.forward_without_bias(part).data(),
                 want.fc2.forward_without_bias(seen(part, form)).data(), sums);
  });
}
INSTANTIATE_TEST_SUITE_P(Sizes, RoundedRanksTest,
                         testing::Combine(testing::Values(1, 2, 4),
                                          testing::Values(InferenceWeights::kInt8,
                                                          InferenceWeights::kFp8)));

TEST_P(RoundedLinearTest, MemoryIsThatOfTheFormula) {
  const auto parameters = [] {
    return allocator_of(Stream{}.device)
        .stats()
        .by_category[static_cast<size_t>(MemoryCategory::kParameters)];
  };
  const int64_t before = parameters();
  const RoundedLinearLayers layers;
  // Blocks of all these sizes are whole: nothing is rounded.
  EXPECT_EQ(parameters() - before,
            parameter_bytes(named_tensors(layers), InferenceWeights::kModel));
  const int64_t after = parameter_bytes(named_tensors(layers), GetParam());
  EXPECT_EQ(after, 2 * kRoundedLinearIn * kRoundedLinearOut +
                       4 * (kRoundedLinearOut + kRoundedLinearIn)  // rounded weights, scales
                       + 4 * (kRoundedLinearOut + kRoundedLinearIn +
                              kRoundedLinearIn * kRoundedLinearOut));  // biases, logits
  round_weights(layers, GetParam(), Stream{});
  EXPECT_EQ(parameters() - before, after);
  // Two ranks: half of everything but the bias and the scales of the row-parallel layer.
  EXPECT_EQ(2 * parameter_bytes(named_tensors(RoundedLinearLayers()), GetParam(), 2),
            after + 8 * kRoundedLinearIn);
}
INSTANTIATE_TEST_SUITE_P(Forms, RoundedLinearTest,
                         testing::Values(InferenceWeights::kInt8, InferenceWeights::kFp8),
                         [](const auto& test) { return std::string(name_of(test.param)); });

TEST(RoundedWeightsTest, WholeNumbersAreForTheCpu) {
  const RoundedLinearLayers layers;
  EXPECT_EQ(
      message_of<ConfigError>([&] {
        round_weights(layers, InferenceWeights::kInt8, Stream{.device = {DeviceType::kCuda, 0}});
      }),
      "--inference-weights int8 is for the CPU: no kernel for GPUs multiplies weights in "
      "int8; give --inference-weights fp8 or --device cpu, or remove the flag");
}

TEST(RoundedWeightsTest, AGpuNeedsWholeTilesOf16BitsForFp8) {
  const Stream gpu{.device = {DeviceType::kCuda, 0}};
  const auto check = [](const Shape& weight, DType dtype, Stream stream) {
    return message_of<ConfigError>(
        [&] { expect_weight_for(InferenceWeights::kFp8, weight, dtype, stream); });
  };
  EXPECT_EQ(check({48, 40}, DType::kBFloat16, gpu),
            "--inference-weights fp8 on a GPU needs weights of 16 bits whose rows and columns on "
            "each rank are multiples of 16, and one is [48, 40] in bfloat16; give "
            "--inference-weights model");
  EXPECT_THAT(check({40, 48}, DType::kBFloat16, gpu), testing::HasSubstr("[40, 48] in bfloat16"));
  EXPECT_THAT(check({32, 48}, DType::kFloat32, gpu), testing::HasSubstr("[32, 48] in float32"));
  EXPECT_NO_THROW(expect_weight_for(InferenceWeights::kFp8, {32, 48}, DType::kFloat16, gpu));
  EXPECT_NO_THROW(expect_weight_for(InferenceWeights::kFp8, {5, 7}, DType::kFloat32, Stream{}));
}

}  // namespace
}  // namespace megatron

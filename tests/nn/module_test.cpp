#include "megatron/nn/module.h"

#include <gmock/gmock.h>

#include <cmath>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "megatron/core/error.h"
#include "megatron/device/allocator.h"
#include "megatron/nn/deferred_memory.h"
#include "tests/support/tensors.h"

namespace megatron {
namespace {

// A linear layer's parameters.
class Layer final : public Module {
 public:
  Layer(int64_t in, int64_t out, bool has_bias, const Init& init, const Placement& placement)
      : weight(add_parameter("weight", {out, in}, {.role = ParameterRole::kMatrix, .init = init},
                             placement)) {
    if (has_bias) add_parameter("bias", {out}, {.role = ParameterRole::kBias}, placement);
  }

  Variable weight;
};

// A two-layer network, to be walked over.
class Pair final : public Module {
 public:
  explicit Pair(const Placement& placement)
      : scale(add_parameter("scale", {1}, {.role = ParameterRole::kNorm, .init = Init::ones()},
                            placement)),
        first(3, 5, true, Init::normal(0.02), placement),
        second(5, 2, false, Init::xavier_uniform(), placement) {
    add_child("first", first);
    add_child("second", second);
  }

  Variable scale;
  Layer first;
  Layer second;
};

// One parameter of any shape and beginning.
class Single final : public Module {
 public:
  Single(const Shape& shape, const ParameterInfo& info, const Placement& placement)
      : weight(add_parameter("weight", shape, info, placement)) {}

  Variable weight;
};

Tensor initialized(const Shape& shape, Init init, uint64_t seed, DType dtype = DType::kFloat32,
                   Sharding sharding = {}) {
  const Single module(shape, {.role = ParameterRole::kMatrix, .init = init, .sharding = sharding},
                      {dtype, Stream{}});
  initialize(module, seed);
  return module.weight.data();
}

TEST(ModuleTest, WalksInTheOrderOfRegistrationWithDottedNames) {
  const Pair pair({});
  std::vector<std::string> names;
  for (const Parameter& parameter : named_parameters(pair)) names.push_back(parameter.name);
  EXPECT_THAT(names, testing::ElementsAre("scale", "first.weight", "first.bias", "second.weight"));
  EXPECT_EQ(num_parameters(pair), 1 + 15 + 5 + 10);
}

TEST(ModuleTest, ParametersAreLeavesOfThePlacement) {
  const Pair pair({DType::kBFloat16, Stream{}});
  for (const Parameter& parameter : named_parameters(pair)) {
    EXPECT_TRUE(parameter.variable.requires_grad()) << parameter.name;
    EXPECT_EQ(parameter.variable.dtype(), DType::kBFloat16) << parameter.name;
  }
}

TEST(ModuleTest, ParametersAreCountedAsSuch) {
  const auto counted = [] {
    return allocator_of(Device{})
        .stats()
        .by_category[static_cast<size_t>(MemoryCategory::kParameters)];
  };
  const int64_t before = counted();
  const Single module({64, 64}, {.role = ParameterRole::kMatrix}, {});
  EXPECT_GE(counted() - before, 64 * 64 * 4);
}

TEST(SpecsTest, DescribeWholeTensors) {
  const ParameterInfo info{.role = ParameterRole::kOutputHead,
                           .init = Init::normal(1),
                           .sharding = {{.axis = 0, .index = 2, .count = 3, .parts = 2}},
                           .has_vocabulary_rows = true,
                           .is_tied = true};
  const Single module({4, 5}, info, {DType::kBFloat16, Stream{}});
  const Parameter spec = named_tensors(module).at(0);
  EXPECT_EQ(spec.name, "weight");
  EXPECT_EQ(spec.whole().name, "weight");
  EXPECT_EQ(spec.whole().shape, (Shape{12, 5}));
  EXPECT_EQ(spec.whole().dtype, DType::kBFloat16);
  EXPECT_EQ(spec.shape, (Shape{4, 5}));
  EXPECT_EQ(spec.dtype, DType::kBFloat16);
  EXPECT_EQ(spec.info.role, ParameterRole::kOutputHead);
  EXPECT_EQ(spec.info.sharding, info.sharding);
  EXPECT_TRUE(spec.info.has_vocabulary_rows);
  EXPECT_TRUE(spec.info.is_tied);
  EXPECT_FALSE(spec.info.is_copy);
}

TEST(SpecsTest, NeedNoMemory) {
  const Pair pair({DType::kBFloat16, Stream{}});
  const std::vector<Parameter> allocated = named_tensors(pair);
  const int64_t before = allocator_of(Device{}).stats().allocated_bytes;
  const DescribeOnly describe_only;
  const Pair described({DType::kBFloat16, Stream{}});
  EXPECT_EQ(allocator_of(Device{}).stats().allocated_bytes, before);
  EXPECT_FALSE(described.scale.defined());
  EXPECT_EQ(num_parameters(described), num_parameters(pair));
  const std::vector<Parameter> here = named_tensors(described);
  ASSERT_EQ(here.size(), allocated.size());
  for (size_t i = 0; i < here.size(); ++i) {
    EXPECT_EQ(here[i].name, allocated[i].name);
    EXPECT_EQ(here[i].shape, allocated[i].shape) << here[i].name;
    EXPECT_EQ(here[i].dtype, allocated[i].dtype) << here[i].name;
    EXPECT_EQ(here[i].info.role, allocated[i].info.role) << here[i].name;
  }
}

TEST(SpecsTest, OnlyTheScopeDescribes) {
  {
    const DescribeOnly outer;
    { const DescribeOnly inner; }
    EXPECT_TRUE(only_describes());
  }
  EXPECT_FALSE(only_describes());
  EXPECT_TRUE(Pair({}).scale.defined());
}

TEST(ShardingTest, OfOneRankIsThatOfSeveral) {
  const Sharding rows{{.axis = 0, .parts = 2}};
  EXPECT_TRUE(rows.is_divided());
  EXPECT_TRUE(rows.is_whole());
  const Sharding second = rows.on_rank(1, 3);
  EXPECT_EQ(second, (Sharding{{.axis = 0, .index = 1, .count = 3, .parts = 2}}));
  EXPECT_EQ(second.local({12, 5}), (Shape{4, 5}));
  EXPECT_THROW(second.local({9, 5}), ShapeError);  // a part of 4.5 rows

  const Sharding whole;
  EXPECT_FALSE(whole.is_divided());
  EXPECT_EQ(whole.on_rank(1, 3), whole);
  EXPECT_EQ(whole.on_rank(1, 3).local({9, 5}), (Shape{9, 5}));
}

// A parameter and a history, as a layer with scales has.
class WithBuffer final : public Module {
 public:
  WithBuffer()
      : weight(add_parameter("weight", {2, 3}, {.role = ParameterRole::kMatrix}, {})),
        history(add_buffer("history", {4}, DType::kFloat32, Init::ones(), Stream{})) {}

  Variable weight;
  Tensor history;
};

TEST(BufferTest, IsListedBesideParametersAndHasNoGradient) {
  const WithBuffer module;
  initialize(module, 1);
  EXPECT_EQ(element(module.history, 3), 1);
  EXPECT_EQ(named_parameters(module).size(), 1u);
  EXPECT_EQ(num_parameters(module), 6);
  EXPECT_EQ(named_tensors(module).at(1).info.role, ParameterRole::kBuffer);

  const std::vector<Parameter> tensors = named_tensors(module);
  ASSERT_EQ(tensors.size(), 2u);
  EXPECT_EQ(tensors[1].name, "history");
  EXPECT_FALSE(tensors[1].variable.requires_grad());
}

TEST(BufferTest, SharesItsElementsWithTheModule) {
  WithBuffer module;
  initialize(module, 1);
  module.history.span<float>()[2] = 7;  // training writes
  EXPECT_EQ(element(named_tensors(module).at(1).variable.data(), 2), 7);
  Tensor loaded = named_tensors(module).at(1).variable.data();
  loaded.span<float>()[0] = 5;  // a checkpoint fills it
  EXPECT_EQ(element(module.history, 0), 5);
}

TEST(InitializeTest, ConstantsAreConstant) {
  expect_identical(initialized({3, 5}, Init::zeros(), 1), full({3, 5}, 0, DType::kFloat32, {}));
  expect_identical(initialized({3, 5}, Init::ones(), 1), full({3, 5}, 1, DType::kFloat32, {}));
}

TEST(InitializeTest, NormalHasItsMoments) {
  const Tensor x = initialized({300, 401}, Init::normal(0.02), 1234);
  double sum = 0, squares = 0, fourth = 0;
  for (const float value : x.span<float>()) {
    sum += value;
    squares += std::pow(value, 2);
    fourth += std::pow(value, 4);
  }
  const auto n = static_cast<double>(x.numel());
  EXPECT_NEAR(sum / n, 0, 4 * 0.02 / std::sqrt(n));
  EXPECT_NEAR(std::sqrt(squares / n), 0.02, 0.0002);
  EXPECT_NEAR(fourth / n / std::pow(squares / n, 2), 3, 0.1);
}

TEST(InitializeTest, XavierUniformFillsItsRange) {
  const Tensor x = initialized({100, 200}, Init::xavier_uniform(), 1234);
  const double bound = std::sqrt(6.0 / 300);
  double largest = 0, squares = 0;
  for (const float value : x.span<float>()) {
    largest = std::max(largest, std::abs(static_cast<double>(value)));
    squares += std::pow(value, 2);
  }
  EXPECT_LE(largest, bound);
  EXPECT_GE(largest, 0.99 * bound);
  EXPECT_NEAR(squares / static_cast<double>(x.numel()), bound * bound / 3, 0.02 * bound * bound);
}

TEST(InitializeTest, DependsOnSeedAndName) {
  const Pair pair({});
  initialize(pair, 1);
  const Tensor first = copied(pair.first.weight.data());
  initialize(pair, 1);
  expect_identical(pair.first.weight.data(), first);
  initialize(pair, 2);
  EXPECT_NE(element(pair.first.weight.data(), 0), element(first, 0));
  // The same shape, kind and seed under another name.
  EXPECT_NE(element(initialized({5, 3}, Init::normal(0.02), 1), 0), element(first, 0));
}

TEST(InitializeTest, AnElementDependsOnItsRowAndColumnOnly) {
  const Tensor wide = initialized({6, 9}, Init::normal(1), 7);
  const Tensor narrow = initialized({4, 7}, Init::normal(1), 7);
  for (int64_t i = 0; i < 4; ++i) {
    for (int64_t k = 0; k < 7; ++k) {
      EXPECT_EQ(element(narrow, i * 7 + k), element(wide, i * 9 + k)) << i << ", " << k;
    }
  }
}

// Elements of the parts of all ranks, put where Sharding says, are the whole tensor.
void expect_shards_are(const Tensor& whole, const Init& init, const Sharding& sharding) {
  const Shape& shape = whole.shape();
  const Shape local = sharding.local(shape);
  EXPECT_EQ(sharding.whole(local), shape);
  std::vector<Sharding> ranks = {sharding};
  for (size_t i = 0; i < sharding.axes.size(); ++i) {
    std::vector<Sharding> next;
    for (const Sharding& rank : ranks) {
      const auto& [axis, index, count, parts, along] = sharding.axes[i];
      for (int64_t at = 0; at < count; ++at) next.push_back(rank.on_rank(at, count, along));
    }
    ranks = std::move(next);
  }
  std::vector<int> seen(static_cast<size_t>(shape.numel()));
  for (const Sharding& rank : ranks) {
    const Tensor part = initialized(local, init, 7, DType::kFloat32, rank);
    for (const Sharding::Block& block : rank.blocks(local)) {
      for (int64_t n = 0; n < block.shape.numel(); ++n) {
        int64_t rest = n;
        int64_t here = 0;
        int64_t there = 0;
        int64_t local_stride = 1;
        int64_t whole_stride = 1;
        for (int axis = shape.rank() - 1; axis >= 0; --axis) {
          const int64_t index = rest % block.shape[axis];
          rest /= block.shape[axis];
          here += (block.local[static_cast<size_t>(axis)] + index) * local_stride;
          there += (block.whole[static_cast<size_t>(axis)] + index) * whole_stride;
          local_stride *= local[axis];
          whole_stride *= shape[axis];
        }
        ASSERT_EQ(element(part, here), element(whole, there));
        seen[static_cast<size_t>(there)] += 1;
      }
    }
  }
  EXPECT_EQ(seen, std::vector<int>(seen.size(), 1));
}

TEST(InitializeTest, ShardsAreThoseOfTheWhole) {
  for (const Init& init : {Init::normal(1), Init::xavier_uniform()}) {
    const Tensor whole = initialized({12, 18}, init, 7);
    expect_shards_are(whole, init, {{.axis = 0, .count = 3}});
    expect_shards_are(whole, init, {{.axis = 1, .count = 2}});
    expect_shards_are(whole, init, {{.axis = 1, .count = 6}});
    expect_shards_are(whole, init, {{.axis = 0, .count = 3, .parts = 2}});
    expect_shards_are(
        whole, init,
        {{.axis = 0, .count = 3}, {.axis = 1, .count = 2, .along = MeshAxis::kExpertTensor}});
  }
}

// Matrices of experts: ranks have some of them, and rows or columns of each.
TEST(InitializeTest, ShardsOfTwoAxesAreThoseOfTheWhole) {
  constexpr AxisSharding kExperts{.axis = 0, .count = 2, .along = MeshAxis::kExpert};
  for (const Init& init : {Init::normal(1), Init::xavier_uniform()}) {
    const Tensor whole = initialized({6, 8, 5}, init, 7);
    expect_shards_are(whole, init, {kExperts});
    expect_shards_are(whole, init,
                      {kExperts, {.axis = 1, .count = 4, .along = MeshAxis::kExpertTensor}});
    expect_shards_are(
        whole, init,
        {{.axis = 1, .count = 2, .parts = 2, .along = MeshAxis::kExpertTensor}, kExperts});
    expect_shards_are(whole, init,
                      {kExperts, {.axis = 2, .count = 5, .along = MeshAxis::kExpertTensor}});
  }
}

// A parameter that gets its memory later gets the same first value.
TEST(DeferMemoryTest, ParametersGetMemoryOneByOne) {
  const Device device{DeviceType::kCpu, 79};
  const Placement placement{.stream = Stream{device}};
  std::optional<DeferMemory> deferred(std::in_place);
  const Pair model(placement);
  deferred.reset();
  initialize(model, 7);
  EXPECT_EQ(allocator_of(device).stats().allocated_bytes, 0);
  const Pair want({});
  initialize(want, 7);
  const std::vector<Parameter> all = named_parameters(model);
  for (size_t i = 0; i < all.size(); ++i) {
    Tensor data = all[i].variable.data();
    ASSERT_FALSE(data.has_memory());
    data.take_memory();
    first_value(all[i].name, all[i].info, data, 7);
    expect_identical(data.to(Stream{}), named_parameters(want)[i].variable.data(), all[i].name);
  }
}

TEST(InitializeTest, SixteenBitsAreTheRoundedFp32) {
  const Tensor want = cast(initialized({4, 7}, Init::normal(1), 7), DType::kBFloat16);
  expect_identical(initialized({4, 7}, Init::normal(1), 7, DType::kBFloat16), want);
}

}  // namespace
}  // namespace megatron

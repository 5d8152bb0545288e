#include "megatron/optim/rounding_tables.h"

#include <gtest/gtest.h>

#include <cstring>
#include <utility>

#include "megatron/optim/optimizer.h"
#include "tests/support/tensors.h"

namespace megatron {
namespace {

// The element of the whole tensor, in row-major order, of each element of a part.
std::vector<int64_t> elements_by_blocks(const Shape& local, const Sharding& sharding) {
  const Shape whole = sharding.whole(local);
  std::vector<int64_t> elements(static_cast<size_t>(local.numel()));
  for (const Sharding::Block& block : sharding.blocks(local)) {
    for (int64_t i = 0; i < block.shape.numel(); ++i) {
      int64_t rest = i;
      int64_t in_local = 0, in_whole = 0, local_stride = 1, whole_stride = 1;
      for (int axis = local.rank() - 1; axis >= 0; --axis) {
        const int64_t index = rest % block.shape[axis];
        rest /= block.shape[axis];
        in_local += (block.local[static_cast<size_t>(axis)] + index) * local_stride;
        in_whole += (block.whole[static_cast<size_t>(axis)] + index) * whole_stride;
        local_stride *= local[axis];
        whole_stride *= whole[axis];
      }
      elements[static_cast<size_t>(in_local)] = in_whole;
    }
  }
  return elements;
}

TEST(RoundingTablesTest, PlacesAreThoseOfTheWholeTensor) {
  struct Case {
    Shape local;
    Sharding sharding;
    size_t most_places;
  };
  const std::vector<Case> cases = {
      {{6, 5}, {}, 1},
      {{6, 5}, {{.axis = 0, .index = 1, .count = 3}}, 1},
      {{6, 5}, {{.axis = 0, .index = 1, .count = 2, .parts = 2}}, 2},  // a gate
      {{6, 5}, {{.axis = 1, .index = 2, .count = 3}}, 1},
      {{6, 4}, {{.axis = 1, .index = 1, .count = 2, .parts = 2}}, 12},
      {{7}, {{.axis = 0, .index = 1, .count = 2}}, 1},
      {{3, 4, 5}, {{.axis = 0, .index = 1, .count = 2}}, 1},
      {{3, 4, 5}, {{.axis = 1, .index = 1, .count = 2}}, 1},
      {{3, 4, 5},
       {{.axis = 0, .index = 1, .count = 2},
        {.axis = 2, .index = 0, .count = 2, .along = MeshAxis::kExpert}},
       1},
      {{3, 4, 5}, {{.axis = 0, .index = 1, .count = 2}, {.axis = 1, .index = 1, .count = 2}}, 1},
      {{1, 1, 1}, {{.axis = 2, .index = 1, .count = 2}}, 1},
  };
  for (const Case& c : cases) {
    const std::vector<int64_t> want = elements_by_blocks(c.local, c.sharding);
    const auto places = places_in_whole(c.local, c.sharding);
    EXPECT_LE(places.size(), c.most_places);
    ASSERT_FALSE(places.empty());
    size_t at = 0;
    for (int64_t i = 0; i < c.local.numel(); ++i) {
      if (at + 1 < places.size() && i >= places[at + 1].first) ++at;
      ASSERT_EQ(places[at].element(i), want[static_cast<size_t>(i)]) << c.local.str() << " " << i;
    }
  }
  EXPECT_TRUE(places_in_whole({0, 3}, {}).empty());
}

// A matrix of 12 x 10 and a bias of 12, or a rank's part of them.
struct RoundedModel {
  std::vector<OptimizedParameter> parameters;
  FlatParameters flat;
  Optimizer optimizer;

  RoundedModel(int64_t index, int64_t count, int axis, bool offloads = false)
      : parameters(made(index, count, axis)),
        flat(parameters, {.accumulate_allreduce_grads_in_fp32 = true}),
        optimizer(flat, config(offloads)) {}

  static OptimizerConfig config(bool offloads) {
    OptimizerConfig c;
    c.params_dtype = DType::kBFloat16;
    c.main_params_dtype = DType::kBFloat16;
    c.clip_grad = 0;
    c.optimizer_cpu_offload = offloads;
    return c;
  }
  // Rows (axis 0) or columns (1) of rank `index` of `count`.
  static Tensor part(const Tensor& whole, int64_t index, int64_t count, int axis) {
    const Shape& shape = whole.shape();
    const int64_t size = shape[axis] / count;
    Tensor y(shape.with(axis, size), whole.dtype(), Stream{});
    for (int64_t i = 0; i < y.numel(); ++i) {
      const int64_t columns = shape.rank() == 1 ? 1 : y.size(1);
      const int64_t all_columns = shape.rank() == 1 ? 1 : shape[1];
      const int64_t row = i / columns + (axis == 0 ? index * size : 0);
      const int64_t column = i % columns + (axis == 1 ? index * size : 0);
      Tensor one = y.reshape({y.numel()}).slice(i, 1);
      copy_into(one, whole.reshape({whole.numel()}).slice(row * all_columns + column, 1));
    }
    return y;
  }
  static std::vector<OptimizedParameter> made(int64_t index, int64_t count, int axis) {
    std::vector<OptimizedParameter> all(2);
    const Tensor weight = random_normal({12, 10}, {.seed = 1, .dtype = DType::kBFloat16});
    const Tensor bias = random_normal({12}, {.seed = 2, .dtype = DType::kBFloat16});
    all[0].name = "weight";
    all[0].variable = Variable::leaf(part(weight, index, count, axis));
    all[0].sharding = {{.axis = axis, .index = index, .count = count}};
    all[1].name = "bias";
    all[1].variable = Variable::leaf(axis == 0 ? part(bias, index, count, 0) : copied(bias));
    if (axis == 0) all[1].sharding = {{.axis = 0, .index = index, .count = count}};
    return all;
  }
  void train(int64_t index, int64_t count, int axis) {
    for (uint64_t step = 1; step <= 5; ++step) {
      Tensor weight = parameters[0].variable.grad();
      Tensor bias = parameters[1].variable.grad();
      const Tensor all = random_normal({12}, {.seed = 200 + step});
      copy_into(weight, part(random_normal({12, 10}, {.seed = 100 + step}), index, count, axis));
      copy_into(bias, axis == 0 ? part(all, index, count, 0) : all);
      optimizer.step({.lr = 1e-3, .decoupled_lr = 1e-3, .weight_decay = 0.1});
    }
  }
};

TEST(RoundingTablesTest, ShardsTrainToTheBitsOfTheWhole) {
  RoundedModel whole(0, 1, 0);
  const Tensor before = copied(whole.parameters[0].variable.data());
  whole.train(0, 1, 0);
  const Tensor weight = whole.parameters[0].variable.data();
  EXPECT_NE(
      0, std::memcmp(weight.view().data, before.view().data, static_cast<size_t>(weight.bytes())));
  for (const auto& [count, axis] : {std::pair(2, 0), std::pair(3, 0), std::pair(2, 1)}) {
    for (int64_t index = 0; index < count; ++index) {
      RoundedModel shard(index, count, axis);
      shard.train(index, count, axis);
      expect_identical(shard.parameters[0].variable.data(),
                       RoundedModel::part(weight, index, count, axis), "weight");
      const Tensor bias = whole.parameters[1].variable.data();
      expect_identical(shard.parameters[1].variable.data(),
                       axis == 0 ? RoundedModel::part(bias, index, count, 0) : bias, "bias");
    }
  }
  RoundedModel offloaded(0, 1, 0, true);
  offloaded.train(0, 1, 0);
  expect_identical(offloaded.parameters[0].variable.data(), weight, "offloaded");
}

enum class Rounding { kNone, kAtRandom, kToNearest };

// The mean square distance of a hundred numbers from their targets after Adam's steps towards
// them, which are far below the last place of bf16.
double distance_after_training(Rounding rounding) {
  constexpr int64_t kNumbers = 100;
  const Tensor target = random_normal({kNumbers}, {.seed = 5});
  std::vector<OptimizedParameter> parameters(1);
  parameters[0].name = "numbers";
  parameters[0].variable =
      Variable::leaf(random_normal({kNumbers}, {.seed = 6, .dtype = DType::kBFloat16}));
  FlatParameters flat(parameters, {.accumulate_allreduce_grads_in_fp32 = true});
  OptimizerConfig config;
  config.params_dtype = DType::kBFloat16;
  config.adam_beta2 = 0.95;
  if (rounding == Rounding::kAtRandom) config.main_params_dtype = DType::kBFloat16;
  Optimizer optimizer(flat, config);
  double distance = 0;
  for (int step = 0; step < 3000; ++step) {
    Tensor grad = parameters[0].variable.grad();
    distance = 0;
    for (int64_t i = 0; i < kNumbers; ++i) {
      const double apart = element(parameters[0].variable.data(), i) - element(target, i);
      grad.span<float>()[static_cast<size_t>(i)] = static_cast<float>(apart / kNumbers);
      distance += apart * apart / kNumbers;
    }
    optimizer.step({.lr = 1.5e-3, .decoupled_lr = 1.5e-3, .weight_decay = 0});
    if (rounding == Rounding::kToNearest) optimizer.reload_main_params();  // no remainders
  }
  return distance;
}

TEST(RoundingTablesTest, TrainsAsFp32WhereRoundingToNearestStops) {
  const double whole = distance_after_training(Rounding::kNone);
  const double at_random = distance_after_training(Rounding::kAtRandom);
  const double to_nearest = distance_after_training(Rounding::kToNearest);
  EXPECT_LT(whole, 1e-4);
  EXPECT_LT(at_random, 1e-3);
  EXPECT_GT(to_nearest, 0.1);
}

// main_param is the parameter itself: it takes no memory, and the state visited shares it.
TEST(RoundingTablesTest, MainParametersAreTheModels) {
  RoundedModel model(0, 1, 0);
  int seen = 0;
  model.optimizer.visit_state([&](const OptimizedParameter& parameter, std::string_view state,
                                  const FlatSpan& part, const Tensor& tensor) {
    if (state != "main_param") return;
    ++seen;
    EXPECT_EQ(tensor.dtype(), DType::kBFloat16);
    EXPECT_EQ(part.size(), parameter.variable.data().numel());
    EXPECT_EQ(tensor.view().data, parameter.variable.data().view().data);
  });
  EXPECT_EQ(seen, 2);
}

}  // namespace
}  // namespace megatron

#include "megatron/optim/optimizer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <map>
#include <utility>

#include "megatron/core/error.h"
#include "tests/support/tensors.h"

namespace megatron {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

// A linear layer and a norm, in the order of registration.
std::vector<OptimizedParameter> optimizer_small_model(DType dtype = DType::kFloat32) {
  std::vector<OptimizedParameter> model;
  uint64_t seed = 0;
  const auto add = [&](const char* name, const Shape& shape) {
    OptimizedParameter p;
    p.name = name;
    p.variable = Variable::leaf(random_normal(shape, {.seed = ++seed, .dtype = dtype}));
    p.has_weight_decay = shape.rank() > 1;
    model.push_back(p);
  };
  add("linear.weight", {6, 10});
  add("linear.bias", {6});
  add("norm.weight", {70});
  return model;
}

OptimizerConfig optimizer_config_of(DType dtype = DType::kFloat32) {
  OptimizerConfig config;
  config.adam_beta2 = 0.95;
  config.params_dtype = dtype;
  return config;
}

void set_grads(const std::vector<OptimizedParameter>& model, uint64_t seed, float scale = 1.0f) {
  for (const OptimizedParameter& p : model) {
    Tensor grad = p.variable.grad();
    copy_into(grad, random_normal(grad.shape(), {.seed = ++seed, .stddev = scale}));
  }
}

constexpr UpdateRates kRates{.lr = 1e-2, .decoupled_lr = 1e-2, .weight_decay = 0.1};

// AdamW of one element in double precision.
struct Reference {
  double w;
  double m = 0, v = 0;

  void step(double g, double lr, double weight_decay, int k) {
    m = 0.9 * m + 0.1 * g;
    v = 0.95 * v + 0.05 * g * g;
    const double mh = m / (1 - std::pow(0.9, k));
    const double vh = v / (1 - std::pow(0.95, k));
    w -= lr * (mh / (std::sqrt(vh) + 1e-8) + weight_decay * w);
  }
};

TEST(ParameterGroupsTest, DecayedComeFirstAndMultipliersFollow) {
  std::vector<OptimizedParameter> model(6);
  model[0].has_weight_decay = false;
  model[2].lr_mult = 10;
  model[3].has_weight_decay = false;
  model[4].has_decoupled_lr = true;
  model[5].lr_mult = 10;
  const auto groups = parameter_groups(model);
  ASSERT_EQ(groups.size(), 4u);
  EXPECT_THAT(groups[0].parameters, ElementsAre(1));
  EXPECT_THAT(groups[1].parameters, ElementsAre(2, 5));
  EXPECT_EQ(groups[1].lr_mult, 10);
  EXPECT_THAT(groups[2].parameters, ElementsAre(4));
  EXPECT_THAT(groups[3].parameters, ElementsAre(0, 3));
  EXPECT_EQ(groups[3].wd_mult, 0);
}

TEST(OptimizerTest, ClipsAndUpdatesEveryParameterAsItsGroupSays) {
  const auto model = optimizer_small_model();
  FlatParameters flat(model, {});
  Optimizer optimizer(flat, optimizer_config_of());

  std::vector<std::vector<Reference>> want;
  for (const auto& p : model) {
    auto& elements = want.emplace_back();
    for (int64_t i = 0; i < p.variable.data().numel(); ++i) {
      elements.push_back({element(p.variable.data(), i)});
    }
  }
  for (int k = 1; k <= 4; ++k) {
    set_grads(model, static_cast<uint64_t>(100 * k));
    double squares = 0;
    for (const auto& p : model) {
      for (const float g : p.variable.grad().span<float>()) squares += static_cast<double>(g) * g;
    }
    const double norm = std::sqrt(squares);
    ASSERT_GT(norm, 1.0) << "the test is about clipping";
    for (size_t n = 0; n < model.size(); ++n) {
      for (size_t i = 0; i < want[n].size(); ++i) {
        const double g = element(model[n].variable.grad(), static_cast<int64_t>(i));
        want[n][i].step(g / (norm + 1e-6), kRates.lr, n == 0 ? 0.1 : 0.0, k);
      }
    }
    const StepResult result = optimizer.step(kRates);
    EXPECT_TRUE(result.ok);
    EXPECT_NEAR(*result.grad_norm, norm, 1e-12 * norm);
    EXPECT_FALSE(result.num_zeros);
  }
  for (size_t n = 0; n < model.size(); ++n) {
    for (size_t i = 0; i < want[n].size(); ++i) {
      EXPECT_NEAR(element(model[n].variable.data(), static_cast<int64_t>(i)), want[n][i].w, 2e-6)
          << model[n].name << " " << i;
    }
  }
  for (const ParameterGroup& group : optimizer.groups()) EXPECT_EQ(group.step, 4);
}

TEST(OptimizerTest, NoClippingMeansNoNorm) {
  const auto model = optimizer_small_model();
  FlatParameters flat(model, {});
  OptimizerConfig config = optimizer_config_of();
  config.clip_grad = 0;
  Optimizer optimizer(flat, config);
  set_grads(model, 1);
  EXPECT_FALSE(optimizer.step(kRates).grad_norm);
}

TEST(OptimizerTest, CountsZerosWithoutPadding) {
  const auto model = optimizer_small_model();
  FlatParameters flat(model, {});
  OptimizerConfig config = optimizer_config_of();
  config.log_num_zeros_in_grad = true;
  Optimizer optimizer(flat, config);
  EXPECT_EQ(optimizer.step(kRates).num_zeros, 136);
  set_grads(model, 1);
  Tensor grad = model[1].variable.grad();
  grad.span<float>()[2] = 0;
  EXPECT_EQ(optimizer.step(kRates).num_zeros, 1);
}

TEST(OptimizerTest, WhatAnotherRankCountsIsNotInTheNorm) {
  auto model = optimizer_small_model();
  model[2].counts_in_norm = false;
  FlatParameters flat(model, {});
  Optimizer optimizer(flat, optimizer_config_of());
  set_grads(model, 1);
  double squares = 0;
  for (size_t n = 0; n < 2; ++n) {
    for (const float g : model[n].variable.grad().span<float>())
      squares += static_cast<double>(g) * g;
  }
  EXPECT_NEAR(*optimizer.step(kRates).grad_norm, std::sqrt(squares), 1e-10);
}

TEST(OptimizerTest, SumsOverTheModelsRanks) {
  const auto model = optimizer_small_model();
  const auto alone = optimizer_small_model();
  FlatParameters flat(model, {});
  FlatParameters flat_alone(alone, {});
  // Three more ranks with the same gradients.
  Optimizer optimizer(flat, optimizer_config_of(), [](TensorView numbers, Stream) {
    for (int64_t i = 0; i < numbers.numel(); ++i) numbers.as<double>()[i] *= 4;
  });
  Optimizer optimizer_alone(flat_alone, optimizer_config_of());
  set_grads(model, 1);
  set_grads(alone, 1);
  EXPECT_DOUBLE_EQ(*optimizer.step(kRates).grad_norm, 2 * *optimizer_alone.step(kRates).grad_norm);
  EXPECT_GT(optimizer.parameter_norm(), 1.9 * optimizer_alone.parameter_norm());
}

TEST(OptimizerTest, HalfPrecisionModelFollowsItsMainParameters) {
  for (const bool grads_in_fp32 : {false, true}) {
    const auto model = optimizer_small_model(DType::kBFloat16);
    FlatParameters flat(model, {.accumulate_allreduce_grads_in_fp32 = grads_in_fp32});
    Optimizer optimizer(flat, optimizer_config_of(DType::kBFloat16));
    for (uint64_t k = 0; k < 5; ++k) {
      set_grads(model, 10 * k);
      EXPECT_TRUE(optimizer.step({.lr = 1e-5, .decoupled_lr = 1e-5, .weight_decay = 0.1}).ok);
    }
    int64_t num_states = 0;
    optimizer.visit_state([&](const OptimizedParameter& parameter, std::string_view state,
                              const FlatSpan& part, const Tensor& tensor) {
      ++num_states;
      EXPECT_EQ(part.begin, 0);
      EXPECT_EQ(part.end, parameter.variable.data().numel());
      if (state != "main_param") return;
      expect_identical(parameter.variable.data().reshape({part.size()}),
                       cast(tensor, DType::kBFloat16), parameter.name);
    });
    EXPECT_EQ(num_states, 9);
  }
}

OptimizerConfig precision_aware(DType moments) {
  OptimizerConfig config = optimizer_config_of(DType::kBFloat16);
  config.bf16 = true;
  config.use_precision_aware_optimizer = true;
  config.exp_avg_dtype = config.exp_avg_sq_dtype = moments;
  return config;
}

// The optimizer's tensors and the parameters, by state and name.
using Snapshot = std::map<std::pair<std::string, std::string>, Tensor>;
Snapshot snapshot_of(const Optimizer& optimizer, const std::vector<OptimizedParameter>& model) {
  Snapshot all;
  optimizer.visit_state([&](const OptimizedParameter& parameter, std::string_view state,
                            const FlatSpan&, const Tensor& tensor) {
    all[{std::string(state), parameter.name}] = copied(tensor);
  });
  for (const OptimizedParameter& p : model) all[{"weights", p.name}] = copied(p.variable.data());
  return all;
}

void expect_same_bits(const Snapshot& got, const Snapshot& want) {
  ASSERT_EQ(got.size(), want.size());
  for (const auto& [key, tensor] : want) {
    expect_identical(got.at(key), tensor, key.first + " of " + key.second);
  }
}

// As load_run() does: weights, the optimizer's tensors with a conversion of types, and scalars.
void load_into(Optimizer& optimizer, const std::vector<OptimizedParameter>& model,
               const Snapshot& saved, const OptimizerScalars& scalars) {
  for (const OptimizedParameter& p : model) {
    Tensor target = p.variable.data();
    copy_into(target, saved.at({"weights", p.name}));
  }
  optimizer.prepare_load();
  optimizer.visit_state([&](const OptimizedParameter& parameter, std::string_view state,
                            const FlatSpan&, Tensor tensor) {
    copy_into(tensor, saved.at({std::string(state), parameter.name}));
  });
  optimizer.load(scalars);
}

TEST(OptimizerTest, RemaindersHaveTheBitsOfFp32MainParameters) {
  for (const OptimizerKind kind :
       {OptimizerKind::kAdam, OptimizerKind::kSgd, OptimizerKind::kLion}) {
    std::vector<Snapshot> results;
    for (const bool is_aware : {false, true}) {
      const auto model = optimizer_small_model(DType::kBFloat16);
      FlatParameters flat(model, {.accumulate_allreduce_grads_in_fp32 = true});
      OptimizerConfig config = precision_aware(DType::kFloat32);
      config.optimizer = kind;
      config.use_precision_aware_optimizer = is_aware;
      Optimizer optimizer(flat, config);
      for (uint64_t k = 0; k < 20; ++k) {
        set_grads(model, 10 * k);
        EXPECT_TRUE(optimizer.step(kRates).ok);
      }
      results.push_back(snapshot_of(optimizer, model));
    }
    EXPECT_EQ(results[0].at({"main_param", "norm.weight"}).dtype(), DType::kFloat32);
    expect_same_bits(results[1], results[0]);
  }
}

// Against the formula in double precision. Elements whose direction is within rounding of 0 may
// have either sign.
TEST(OptimizerTest, LionMovesByTheSignOfItsInterpolation) {
  const auto model = optimizer_small_model();
  FlatParameters flat(model, {});
  OptimizerConfig config = optimizer_config_of();
  config.optimizer = OptimizerKind::kLion;
  config.clip_grad = 0.0;
  config.lion_beta1 = 0.8;
  config.lion_beta2 = 0.95;
  Optimizer optimizer(flat, config);
  std::vector<std::vector<double>> w;
  std::vector<std::vector<double>> m;
  for (const auto& p : model) {
    const auto values = p.variable.data().span<float>();
    w.emplace_back(values.begin(), values.end());
    m.emplace_back(values.size(), 0.0);
  }
  for (uint64_t k = 1; k <= 5; ++k) {
    set_grads(model, 100 * k);
    for (size_t n = 0; n < model.size(); ++n) {
      for (size_t i = 0; i < w[n].size(); ++i) {
        const double g = element(model[n].variable.grad(), static_cast<int64_t>(i));
        const double direction = 0.8 * m[n][i] + 0.2 * g;
        ASSERT_GT(std::abs(direction), 1e-6);
        const double step = direction > 0 ? 1.0 : -1.0;
        m[n][i] = 0.95 * m[n][i] + 0.05 * g;
        w[n][i] -= kRates.lr * (step + (n == 0 ? kRates.weight_decay : 0.0) * w[n][i]);
      }
    }
    EXPECT_TRUE(optimizer.step(kRates).ok);
  }
  for (size_t n = 0; n < model.size(); ++n) {
    for (size_t i = 0; i < w[n].size(); ++i) {
      EXPECT_NEAR(element(model[n].variable.data(), static_cast<int64_t>(i)), w[n][i], 1e-5);
    }
  }
}

// The second of two steps follows a save and a load, into the same types and into others.
TEST(OptimizerTest, StateOfOneTypeGoesOnInAnother) {
  const std::vector<OptimizerConfig> configs = {
      optimizer_config_of(DType::kBFloat16), precision_aware(DType::kFloat32),
      precision_aware(DType::kBFloat16), precision_aware(DType::kFloat16),
      precision_aware(DType::kFloat8E4M3)};
  for (size_t from = 0; from < configs.size(); ++from) {
    for (size_t to = 0; to < configs.size(); ++to) {
      const auto model = optimizer_small_model(DType::kBFloat16);
      FlatParameters flat(model, {});
      Optimizer optimizer(flat, configs[from]);
      set_grads(model, 1);
      optimizer.step(kRates);
      const auto other = optimizer_small_model(DType::kBFloat16);
      FlatParameters other_flat(other, {});
      Optimizer resumed(other_flat, configs[to]);
      load_into(resumed, other, snapshot_of(optimizer, model), optimizer.scalars());
      set_grads(model, 2);
      set_grads(other, 2);
      optimizer.step(kRates);
      resumed.step(kRates);
      const Snapshot want = snapshot_of(optimizer, model);
      const Snapshot got = snapshot_of(resumed, other);
      const bool are_fp32 = from < 2 && to < 2;
      if (from == to || are_fp32) {
        expect_same_bits(got, want);
      } else {
        for (const auto& [key, tensor] : want) {
          // A moment with 8 bits moves a parameter by lr times 2^-7 at most. In fp8 a moment, or
          // the root of the second, is within an eighth twice, and small ones are within a part of
          // the largest in their block.
          const bool is_fp8 = from == 4 || to == 4;
          const Tolerance of_moment = is_fp8 ? Tolerance{.relative = 0.55, .absolute = 1e-2}
                                             : tolerance_of(DType::kBFloat16);
          const Tolerance tolerance =
              key.first == "main_param" ? Tolerance{.relative = 0, .absolute = is_fp8 ? 1e-2 : 8e-5}
                                        : of_moment;
          expect_close(got.at(key), tensor, tolerance, key.first);
        }
      }
    }
  }
}

TEST(OptimizerTest, WeightsLoadedAloneDropTheRemainders) {
  const auto model = optimizer_small_model(DType::kBFloat16);
  FlatParameters flat(model, {});
  Optimizer optimizer(flat, precision_aware(DType::kFloat32));
  set_grads(model, 1);
  optimizer.step(kRates);
  optimizer.reload_main_params();
  optimizer.visit_state([](const OptimizedParameter& parameter, std::string_view state,
                           const FlatSpan& part, const Tensor& tensor) {
    if (state != "main_param") return;
    expect_identical(tensor,
                     cast(parameter.variable.data().reshape({part.size()}), DType::kFloat32),
                     parameter.name);
  });
}

TEST(OptimizerTest, OverflowSkipsTheStepAndHalvesTheScale) {
  const auto model = optimizer_small_model(DType::kFloat16);
  FlatParameters flat(model, {});
  OptimizerConfig config = optimizer_config_of(DType::kFloat16);
  config.initial_loss_scale = 1024;
  config.hysteresis = 1;
  Optimizer optimizer(flat, config);
  EXPECT_EQ(optimizer.loss_scale(), 1024);
  const Tensor before = copied(model[0].variable.data());

  set_grads(model, 1);
  Tensor grad = model[2].variable.grad();
  grad.span<Float16>()[69] = Float16(std::numeric_limits<float>::infinity());
  const StepResult skipped = optimizer.step(kRates);
  EXPECT_FALSE(skipped.ok);
  EXPECT_FALSE(skipped.grad_norm);
  EXPECT_EQ(optimizer.loss_scale(), 512);
  EXPECT_EQ(optimizer.groups()[0].step, 0);
  expect_identical(model[0].variable.data(), before);

  flat.zero_grads();
  set_grads(model, 1, 16.0f);
  const StepResult done = optimizer.step(kRates);
  EXPECT_TRUE(done.ok);
  EXPECT_LT(*done.grad_norm, 1.0) << "the norm is of the unscaled gradients";
  EXPECT_EQ(optimizer.groups()[0].step, 1);
}

TEST(OptimizerTest, LossScaleDoesNotChangeTheUpdate) {
  std::vector<Tensor> results;
  for (const double scale : {0.0, 4096.0}) {
    const auto model = optimizer_small_model(DType::kBFloat16);
    FlatParameters flat(model, {.accumulate_allreduce_grads_in_fp32 = true});
    OptimizerConfig config = optimizer_config_of(DType::kBFloat16);
    config.loss_scale = scale;
    Optimizer optimizer(flat, config);
    set_grads(model, 1, static_cast<float>(optimizer.loss_scale()));
    EXPECT_NEAR(*optimizer.step(kRates).grad_norm, 11, 3);
    results.push_back(copied(flat.buffers()[0].params));
  }
  expect_identical(results[0], results[1]);
}

TEST(OptimizerTest, NotFiniteGradientsWithoutScalerAreAnError) {
  const auto model = optimizer_small_model();
  FlatParameters flat(model, {});
  OptimizerConfig config = optimizer_config_of();
  Optimizer optimizer(flat, config);
  set_grads(model, 1);
  Tensor grad = model[1].variable.grad();
  grad.span<float>()[0] = std::numeric_limits<float>::quiet_NaN();
  EXPECT_THAT(message_of<Error>([&] { optimizer.step(kRates); }),
              HasSubstr("infinite or NaN elements, first in linear.bias"));

  config.check_for_nan_in_loss_and_grad = false;
  Optimizer unchecked(flat, config);
  EXPECT_TRUE(unchecked.step(kRates).ok);
}

TEST(OptimizerTest, LearningRateMultiplierAndDecoupledRate) {
  auto model = optimizer_small_model();
  model[1].lr_mult = 0;
  model[2].has_decoupled_lr = true;
  FlatParameters flat(model, {});
  Optimizer optimizer(flat, optimizer_config_of());
  std::vector<Tensor> before;
  for (const auto& p : model) before.push_back(copied(p.variable.data()));
  set_grads(model, 1);
  optimizer.step({.lr = 1e-2, .decoupled_lr = 0, .weight_decay = 0});
  EXPECT_NE(element(model[0].variable.data(), 0), element(before[0], 0));
  expect_identical(model[1].variable.data(), before[1]);
  expect_identical(model[2].variable.data(), before[2]);
}

TEST(OptimizerTest, ContinuesFromSavedState) {
  for (const OptimizerKind kind :
       {OptimizerKind::kAdam, OptimizerKind::kSgd, OptimizerKind::kLion}) {
    OptimizerConfig config = optimizer_config_of(DType::kFloat16);
    config.optimizer = kind;
    config.initial_loss_scale = 4;
    config.loss_scale_window = 2;
    const auto model = optimizer_small_model(DType::kFloat16);
    FlatParameters flat(model, {});
    Optimizer optimizer(flat, config);
    for (uint64_t k = 0; k < 3; ++k) {
      set_grads(model, 10 * k);
      optimizer.step(kRates);
    }

    const auto other = optimizer_small_model(DType::kFloat16);
    FlatParameters other_flat(other, {});
    Optimizer resumed(other_flat, config);
    std::map<std::pair<std::string, std::string>, Tensor> saved;
    optimizer.visit_state([&](const OptimizedParameter& parameter, std::string_view state,
                              const FlatSpan&, const Tensor& tensor) {
      saved[{parameter.name, std::string(state)}] = copied(tensor);
    });
    EXPECT_EQ(saved.size(), kind == OptimizerKind::kAdam ? 9u : 6u);
    resumed.visit_state([&](const OptimizedParameter& parameter, std::string_view state,
                            const FlatSpan&, Tensor tensor) {
      copy_into(tensor, saved.at({parameter.name, std::string(state)}));
    });
    for (size_t n = 0; n < model.size(); ++n) {
      Tensor target = other[n].variable.data();
      copy_into(target, model[n].variable.data());
    }
    resumed.load(optimizer.scalars());
    EXPECT_EQ(resumed.loss_scale(), optimizer.loss_scale());

    for (uint64_t k = 3; k < 6; ++k) {
      set_grads(model, 10 * k);
      set_grads(other, 10 * k);
      EXPECT_EQ(optimizer.step(kRates).grad_norm, resumed.step(kRates).grad_norm);
    }
    expect_identical(other_flat.buffers()[0].params, flat.buffers()[0].params);
  }
}

TEST(OptimizerTest, TheStepIsKnownWhenItIsFinished) {
  const auto model = optimizer_small_model(DType::kFloat16);
  FlatParameters flat(model, {});
  OptimizerConfig config = optimizer_config_of(DType::kFloat16);
  config.initial_loss_scale = 1024;
  config.hysteresis = 1;
  Optimizer optimizer(flat, config);
  set_grads(model, 1);
  Tensor grad = model[2].variable.grad();
  grad.span<Float16>()[69] = Float16(std::numeric_limits<float>::infinity());
  optimizer.queue_step(kRates);
  EXPECT_TRUE(optimizer.has_queued_step());
  EXPECT_EQ(optimizer.loss_scale(), 1024) << "what the gradients had";
  EXPECT_EQ(optimizer.loss_seed(4).item(), 128) << "what the next ones will have";
  EXPECT_THROW(optimizer.queue_step(kRates), InternalError);
  EXPECT_THROW(optimizer.scalars(), InternalError);
  EXPECT_FALSE(optimizer.finish_step().ok);
  EXPECT_FALSE(optimizer.has_queued_step());
  EXPECT_EQ(optimizer.loss_scale(), 512);
}

TEST(OptimizerTest, ALossThatIsNotANumberLeavesTheModelAlone) {
  const auto model = optimizer_small_model();
  FlatParameters flat(model, {});
  Optimizer optimizer(flat, optimizer_config_of());
  set_grads(model, 1);
  const Tensor before = copied(flat.buffers()[0].params);
  const float nan = std::numeric_limits<float>::quiet_NaN();
  EXPECT_THROW(optimizer.step(kRates, {.losses = tensor_of(std::vector<float>{1.0f, nan}, {2})}),
               NotFiniteError);
  expect_identical(flat.buffers()[0].params, before);
  EXPECT_TRUE(optimizer.step(kRates, {.losses = tensor_of(std::vector<float>{1.0f}, {1})}).ok);
}

TEST(OptimizerTest, MeasuresParametersAfterTheUpdate) {
  const auto model = optimizer_small_model();
  FlatParameters flat(model, {});
  Optimizer optimizer(flat, optimizer_config_of());
  set_grads(model, 1);
  const double before = optimizer.parameter_norm();
  const StepResult result = optimizer.step(kRates, {.measures_parameters = true});
  EXPECT_EQ(result.parameter_norm, optimizer.parameter_norm());
  EXPECT_NE(result.parameter_norm, before);
  EXPECT_FALSE(optimizer.step(kRates).parameter_norm);
}

TEST(OptimizerTest, RejectsTheStateOfAnotherModel) {
  const auto model = optimizer_small_model();
  FlatParameters flat(model, {});
  Optimizer optimizer(flat, optimizer_config_of());
  EXPECT_THAT(message_of<ConfigError>([&] {
                optimizer.load({.group_steps = {1, 2, 3}, .loss_scaler = {}});
              }),
              HasSubstr("3 parameter groups, this model 2"));
}

TEST(OptimizerTest, WeightsLoadedAloneReplaceTheMainParameters) {
  const auto model = optimizer_small_model(DType::kBFloat16);
  FlatParameters flat(model, {});
  Optimizer optimizer(flat, optimizer_config_of(DType::kBFloat16));
  Tensor weight = model[0].variable.data();
  copy_into(weight, full(weight.shape(), 2.0f, DType::kFloat32, Stream{}));
  optimizer.reload_main_params();
  set_grads(model, 1);
  optimizer.step({.lr = 0, .decoupled_lr = 0, .weight_decay = 0});
  EXPECT_EQ(element(model[0].variable.data(), 59), 2.0);
}

}  // namespace
}  // namespace megatron

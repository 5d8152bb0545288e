#include "megatron/optim/loss_scaler.h"

#include <gtest/gtest.h>

#include "tests/optim/golden_log.h"

namespace megatron {
namespace {

TEST(LossScalerTest, FollowsTheScalesOfARealRun) {
  OptimizerConfig config;
  config.fp16 = true;
  LossScaler scaler = *make_loss_scaler(resolved(config));
  EXPECT_EQ(scaler.scale(), 4294967296.0);
  for (const LoggedIteration& iteration : logged_iterations("fp16")) {
    scaler.update(iteration.number("number of skipped iterations") == 1);
    EXPECT_EQ(scaler.scale(), iteration.number("loss scale")) << iteration.line;
  }
}

TEST(LossScalerTest, HysteresisIsRefilledByGrowthOnly) {
  LossScaler scaler = LossScaler::dynamic(1024, 1, 3, 2);
  const auto after = [&](bool found_inf) {
    scaler.update(found_inf);
    return scaler.scale();
  };
  EXPECT_EQ(after(true), 1024);  // tolerated
  EXPECT_EQ(after(true), 512);   // the second is not
  EXPECT_EQ(after(false), 512);
  EXPECT_EQ(after(false), 512);
  EXPECT_EQ(after(true), 256);  // clean steps alone refill nothing
  EXPECT_EQ(after(false), 256);
  EXPECT_EQ(after(false), 256);
  EXPECT_EQ(after(false), 512);  // the window is full
  EXPECT_EQ(after(true), 512);   // tolerated again
  EXPECT_EQ(after(true), 256);
}

TEST(LossScalerTest, StopsAtTheMinimum) {
  LossScaler scaler = LossScaler::dynamic(4, 1.5, 1000, 1);
  scaler.update(true);
  EXPECT_EQ(scaler.scale(), 2);
  scaler.update(true);
  EXPECT_EQ(scaler.scale(), 1.5);
  scaler.update(true);
  EXPECT_EQ(scaler.scale(), 1.5);
}

TEST(LossScalerTest, ContinuesFromItsState) {
  LossScaler first = LossScaler::dynamic(64, 1, 3, 2);
  for (const bool found_inf : {true, false, false}) first.update(found_inf);
  LossScaler second = LossScaler::dynamic(4096, 1, 3, 2);
  second.load(first.state());
  for (const bool found_inf : {false, true, true, true, false}) {
    first.update(found_inf);
    second.update(found_inf);
    EXPECT_EQ(first.scale(), second.scale());
  }
  LossScaler constant = LossScaler::constant(8);
  constant.load({.scale = 16, .growth_tracker = 5, .hysteresis_tracker = 1});
  EXPECT_EQ(constant.scale(), 16);
  EXPECT_EQ(constant.state().growth_tracker, 0);
}

TEST(LossScalerTest, DependsOnPrecisionAndFlags) {
  OptimizerConfig config;
  config.loss_scale = 128;
  EXPECT_FALSE(make_loss_scaler(config)->is_dynamic());
  EXPECT_EQ(make_loss_scaler(config)->scale(), 128) << "fp32 with the distributed optimizer";
  config.params_dtype = DType::kBFloat16;
  EXPECT_FALSE(make_loss_scaler(config)->is_dynamic());
  config.loss_scale = 0;
  EXPECT_FALSE(make_loss_scaler(config)) << "bf16 has none by itself";
  config.params_dtype = DType::kFloat16;
  EXPECT_TRUE(make_loss_scaler(config)->is_dynamic());

  LossScaler constant = LossScaler::constant(128);
  constant.update(true);
  EXPECT_EQ(constant.scale(), 128);
}

}  // namespace
}  // namespace megatron

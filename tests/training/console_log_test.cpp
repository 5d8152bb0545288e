#include "megatron/training/console_log.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <fstream>
#include <string>
#include <vector>

namespace megatron {
namespace {

using testing::AllOf;
using testing::HasSubstr;

TEST(IterationLineTest, IsMegatronsLine) {
  // Iteration 20 of a run of Megatron-LM core_r0.5.0 (tests/golden/megatron/gpt).
  const IterationLine line{.iteration = 20,
                           .train_iters = 20,
                           .consumed_samples = 160,
                           .elapsed_ms = 76.2,
                           .teraflops_per_device = std::nullopt,
                           .mfu_percent = std::nullopt,
                           .hfu_percent = std::nullopt,
                           .learning_rate = 1e-4,
                           .global_batch_size = 8,
                           .losses = {{"lm loss", 5.964185}},
                           .loss_scale = 1,
                           .grad_norm = 0.588,
                           .num_zeros = std::nullopt,
                           .params_norm = std::nullopt,
                           .skipped_iterations = 0,
                           .nan_iterations = 0};
  EXPECT_EQ(text_of(line),
            " iteration       20/      20 | consumed samples:          160 | elapsed time per "
            "iteration (ms): 76.2 | learning rate: 1.000E-04 | global batch size:     8 | lm loss: "
            "5.964185E+00 | loss scale: 1.0 | grad norm: 0.588 | number of skipped iterations:   0 "
            "| number of nan iterations:   0 |");
}

TEST(IterationLineTest, PrintsOptionalFieldsInMegatronsOrder) {
  IterationLine line;
  line.losses = {{"lm loss", 0.0}, {"sop loss", 0.5}};
  line.teraflops_per_device = 103.26;
  line.grad_norm = 1;
  line.num_zeros = 12;
  line.params_norm = 2.5;
  EXPECT_EQ(
      text_of(line),
      " iteration        0/       0 | consumed samples:            0 | elapsed time per "
      "iteration (ms): 0.0 | throughput per GPU (TFLOP/s/GPU): 103.3 | learning rate: "
      "0.000E+00 | global batch size:     0 | sop loss: 5.000000E-01 | loss scale: 1.0 | grad "
      "norm: 1.000 | num zeros: 12.0 | params norm: 2.500 | number of skipped iterations:   0 "
      "| number of nan iterations:   0 |");
}

TEST(IterationLineTest, PrintsTheCurriculumInMegatronDeepSpeedsOrder) {
  IterationLine line;
  line.consumed_tokens = 4096;
  line.params_norm = 2.5;
  line.curriculum_seqlen = 64;
  EXPECT_THAT(
      text_of(line),
      AllOf(HasSubstr("samples:            0 | consumed tokens:         4096 | elapsed"),
            HasSubstr("params norm: 2.500 | curriculum seqlen:    64 | number of skipped")));
}

TEST(IterationLineTest, PrintsUtilizationBehindTheThroughput) {
  IterationLine line;
  line.mfu_percent = 41.26;
  line.hfu_percent = 55;
  EXPECT_THAT(text_of(line), testing::Not(testing::HasSubstr("MFU")));
  line.teraflops_per_device = 400;
  EXPECT_THAT(text_of(line),
              testing::HasSubstr("(TFLOP/s/GPU): 400.0 | MFU: 41.3% | HFU: 55.0% | learning"));
}

// fmt would print "-nan", which no parser of Python's numbers knows.
TEST(IterationLineTest, NotANumberHasNoSign) {
  IterationLine line;
  const double nan = std::copysign(std::nan(""), -1.0);
  line.grad_norm = nan;
  line.params_norm = nan;
  EXPECT_THAT(text_of(line),
              AllOf(HasSubstr(" grad norm: nan |"), HasSubstr(" params norm: nan |")));
  EXPECT_THAT(validation_text("validation", "iteration 1", {{"lm loss", nan}}),
              AllOf(HasSubstr("value: NAN |"), testing::Not(HasSubstr("-NAN"))));
}

TEST(ValidationTextTest, IsMegatronsThreeLines) {
  const std::string rule(94, '-');
  EXPECT_EQ(validation_text("validation", "iteration 10", {{"lm loss", 6.0265507}}),
            rule +
                "\n validation loss at iteration 10 | lm loss value: 6.026551E+00 | lm loss PPL: "
                "4.142836E+02 | \n" +
                rule);
}

TEST(ValidationTextTest, NamesTheGroup) {
  EXPECT_THAT(validation_text("valid_ar", "iteration 10", {{"lm loss", 6}}),
              HasSubstr("\n valid_ar loss at iteration 10 | lm loss value: 6.0"));
}

TEST(DurationTextTest, IsShort) {
  EXPECT_EQ(duration_text(0.4), "0m00s");
  EXPECT_EQ(duration_text(200), "3m20s");
  EXPECT_EQ(duration_text(7500), "2h05m");
}

TEST(SavingTextTest, IsMegatrons) {
  EXPECT_EQ(saving_text(20, "ckpt"), "saving checkpoint at iteration      20 to ckpt");
  EXPECT_EQ(saved_text(20, "ckpt"), "  successfully saved checkpoint at iteration      20 to ckpt");
}

}  // namespace
}  // namespace megatron

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "annex/deepspeed/apply_config.h"
#include "tests/support/temporary_directory.h"

namespace megatron::frontends {
namespace {

using testing::Contains;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using Words = std::vector<std::string>;

struct DeepspeedFlagsApplied {
  TrainingArgs args;
  std::vector<std::string> problems;
};

// Flags with --deepspeed_config naming a file of that text; empty: without the flag.
DeepspeedFlagsApplied deepspeed_flags_applied(const std::string& file, Words words,
                                              int64_t world_size = 2) {
  const TemporaryDirectory directory;
  if (!file.empty()) {
    words.insert(words.end(),
                 {"--deepspeed", "--deepspeed_config", directory.write("ds.json", file)});
  }
  DeepspeedFlagsApplied result;
  result.args = parsed_flags(words, ModelKind::kGpt, result.problems);
  apply_deepspeed_flags(result.args, world_size, result.problems);
  return result;
}

// The file of BigScience's tiny script.
constexpr const char* kTiny = R"({
  "train_micro_batch_size_per_gpu": 1,
  "train_batch_size": 16,
  "gradient_clipping": 1.0,
  "zero_optimization": {"stage": 1},
  "fp16": {"enabled": true, "loss_scale": 0, "loss_scale_window": 500, "hysteresis": 2,
           "min_loss_scale": 1, "initial_scale_power": 12},
  "steps_per_print": 2000,
  "wall_clock_breakdown": false
})";

TEST(DeepSpeedFlags, BigSciencesFileBecomesFlags) {
  const DeepspeedFlagsApplied got =
      deepspeed_flags_applied(kTiny, {"--micro-batch-size", "1", "--global-batch-size", "16",
                                      "--fp16", "--zero-stage", "1", "--clip-grad", "1.0"});
  EXPECT_THAT(got.problems, IsEmpty());
  EXPECT_TRUE(got.args.parallel.use_distributed_optimizer);
  EXPECT_EQ(got.args.optimizer.initial_loss_scale, 4096.0);
  EXPECT_EQ(got.args.optimizer.loss_scale_window, 500.0);
  EXPECT_EQ(got.args.training.global_batch_size, 16);
}

TEST(DeepSpeedFlags, LoadUniversalLoadsTheUniversalCheckpoint) {
  const TemporaryDirectory run;
  const std::string file = R"({"train_batch_size": 8, "checkpoint": {"load_universal": true}})";
  const Words load = {"--load", run.path().string()};
  EXPECT_EQ(deepspeed_flags_applied(file, load).args.checkpoint.load, run.path());  // there is none
  run.write("latest_universal", "global_step7_universal\n");
  const DeepspeedFlagsApplied got = deepspeed_flags_applied(file, load);
  EXPECT_THAT(got.problems, IsEmpty());
  EXPECT_EQ(got.args.checkpoint.load, run.path() / "global_step7_universal");
}

TEST(DeepSpeedFlags, BatchesOfTheFileNeedNoFlags) {
  const DeepspeedFlagsApplied got = deepspeed_flags_applied(
      R"({"train_batch_size": 8, "bf16": {"enabled": "auto"}})", {"--bf16"});
  EXPECT_THAT(got.problems, IsEmpty());
  EXPECT_EQ(got.args.training.micro_batch_size, 4);
  EXPECT_EQ(got.args.training.global_batch_size, 8);
  EXPECT_EQ(got.args.optimizer.clip_grad, 0.0);
  EXPECT_THAT(got.args.warnings, Contains(HasSubstr("DeepSpeed does not clip gradients")));
  EXPECT_TRUE(got.args.parallel.use_distributed_optimizer);  // stage 0 with bf16
}

TEST(DeepSpeedFlags, AllContradictionsAreReportedTogether) {
  const DeepspeedFlagsApplied got = deepspeed_flags_applied(
      kTiny,
      {"--micro-batch-size", "2", "--global-batch-size", "8", "--bf16", "--zero-stage", "0"});
  EXPECT_THAT(
      got.problems,
      ElementsAre(
          HasSubstr(
              "train_micro_batch_size_per_gpu is 1 and --micro-batch-size is 2; they must be"),
          HasSubstr("train_batch_size is 16 and --global-batch-size is 8; they must be equal"),
          HasSubstr("fp16.enabled is true; add --fp16"),
          HasSubstr("--bf16 is given; set bf16.enabled to true"),
          HasSubstr("zero_optimization.stage is 1 and --zero-stage is 0; they must be equal")));
}

TEST(DeepSpeedFlags, StagesWithoutAFile) {
  for (int64_t stage = 0; stage <= 3; ++stage) {
    const DeepspeedFlagsApplied got =
        deepspeed_flags_applied("", {"--zero-stage", std::to_string(stage)});
    EXPECT_THAT(got.problems, IsEmpty());
    EXPECT_EQ(got.args.parallel.zero_stage, stage);
  }
}

TEST(DeepSpeedFlags, StagesOfTheFile) {
  for (int64_t stage = 0; stage <= 3; ++stage) {
    const DeepspeedFlagsApplied got = deepspeed_flags_applied(
        fmt::format(R"({{"train_batch_size": 8, "zero_optimization": {{"stage": {}}}}})", stage),
        {});
    EXPECT_THAT(got.problems, IsEmpty());
    EXPECT_EQ(got.args.parallel.zero_stage, stage);
    EXPECT_EQ(got.args.parallel.use_distributed_optimizer, stage > 0);
  }
}

TEST(DeepSpeedFlags, TheOptimizerMayBeOffloadedToTheHost) {
  for (const char* const way : {R"("cpu_offload": true)",
                                R"("offload_optimizer": {"device": "cpu", "pin_memory": true})"}) {
    const DeepspeedFlagsApplied got = deepspeed_flags_applied(
        fmt::format(R"({{"train_batch_size": 8, "zero_optimization": {{"stage": 2, {}}}}})", way),
        {});
    EXPECT_THAT(got.problems, IsEmpty());
    EXPECT_TRUE(got.args.optimizer.optimizer_cpu_offload);
  }
  const DeepspeedFlagsApplied got = deepspeed_flags_applied(
      R"({"train_batch_size": 8, "zero_optimization": {"stage": 3,
          "offload_optimizer": {"device": "nvme"}, "offload_param": {"device": "cpu"}}})",
      {});
  EXPECT_THAT(
      got.problems,
      ElementsAre(HasSubstr("zero_optimization.offload_optimizer.device nvme is not"),
                  HasSubstr("zero_optimization.offload_param.device cpu is not available")));
}

TEST(DeepSpeedFlags, AFaultyFileIsAProblem) {
  EXPECT_THAT(deepspeed_flags_applied("{\"a\": 1, \"a\": 2}", {}).problems,
              ElementsAre(HasSubstr("the key a appears twice")));
}

TEST(DeepSpeedFlags, TokensAreSamples) {
  const Words sequence = {"--seq-length", "100"};
  const auto samples = [&](Words words) {
    words.insert(words.end(), sequence.begin(), sequence.end());
    return deepspeed_flags_applied("", words).args.training.train_samples;
  };
  EXPECT_EQ(samples({"--train-tokens", "1_001"}), 11);
  EXPECT_EQ(samples({"--train-tokens", "1000", "--train-samples", "5"}), 5);
  EXPECT_EQ(samples({"--train-tokens", "1000", "--train-samples", "50"}), 10);
}

TEST(DeepSpeedFlags, DecayInTokens) {
  const DeepspeedFlagsApplied got = deepspeed_flags_applied(
      "", {"--seq-length", "100", "--train-samples", "50", "--lr-decay-tokens", "2_001"});
  EXPECT_THAT(got.problems, testing::IsEmpty());
  EXPECT_EQ(got.args.optimizer.lr_decay_samples, 21);
  EXPECT_THAT(deepspeed_flags_applied(
                  "", {"--seq-length", "100", "--train-iters", "5", "--lr-decay-tokens", "9"})
                  .problems,
              ElementsAre(HasSubstr("--lr-decay-tokens 9 needs --train-samples or")));
}

// Two iterations of 8 tokens, then 16: 4 samples each.
constexpr const char* kCurriculum = R"({
  "train_batch_size": 4,
  "curriculum_learning": {
    "enabled": true, "curriculum_type": "seqlen", "min_difficulty": 8, "max_difficulty": 16,
    "schedule_type": "fixed_discrete",
    "schedule_config": {"difficulty": [8, 16], "max_step": [2]}
  }
})";

TEST(DeepSpeedFlags, TokensOfACurriculumAreThoseOfShortSequences) {
  const DeepspeedFlagsApplied got = deepspeed_flags_applied(
      kCurriculum, {"--seq-length", "16", "--train-tokens", "193", "--lr-decay-tokens", "128"});
  EXPECT_THAT(got.problems, IsEmpty());
  EXPECT_EQ(got.args.training.train_samples, 20);  // 2 * 32 + 2 * 64 tokens, and one iteration
  EXPECT_EQ(got.args.optimizer.lr_decay_samples, 12);
  EXPECT_TRUE(got.args.optimizer.lr_decays_by_tokens);
}

TEST(DeepSpeedFlags, RangesOfIterationsAreSkipped) {
  const DeepspeedFlagsApplied got =
      deepspeed_flags_applied("", {"--skip-train-iteration-range", "3-4", "4-5", "9-9"});
  EXPECT_THAT(got.args.training.iterations_to_skip, ElementsAre(3, 4, 5, 9));
  EXPECT_THAT(deepspeed_flags_applied("", {"--skip-train-iteration-range", "5-3"}).problems,
              ElementsAre(HasSubstr("--skip-train-iteration-range 5-3 must be")));
  EXPECT_THAT(deepspeed_flags_applied("", {"--skip-train-iteration-range", "5"}).problems,
              ElementsAre(HasSubstr("--skip-train-iteration-range 5 must be")));
}

}  // namespace
}  // namespace megatron::frontends

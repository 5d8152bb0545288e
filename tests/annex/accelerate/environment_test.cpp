#include "annex/accelerate/environment.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>

#include "megatron/core/error.h"
#include "tests/support/message_of.h"

namespace megatron::frontends {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using Variables = std::map<std::string, std::string>;

struct EnvironmentApplied {
  TrainingArgs args;
  std::vector<std::string> problems;
};

EnvironmentApplied environment_applied(const Variables& variables,
                                       const std::vector<std::string>& words,
                                       int64_t world_size = 8) {
  EnvironmentApplied result;
  result.args = parsed_flags(words, ModelKind::kGpt, result.problems);
  apply_accelerate_environment(
      result.args, world_size,
      [&](const char* name) {
        const auto found = variables.find(name);
        return found == variables.end() ? nullptr : found->second.c_str();
      },
      result.problems);
  return result;
}

TEST(AccelerateEnvironment, BecomesFlags) {
  const EnvironmentApplied got =
      environment_applied({{"ACCELERATE_USE_MEGATRON_LM", "true"},
                           {"ACCELERATE_MIXED_PRECISION", "bf16"},
                           {"MEGATRON_LM_TP_DEGREE", "2"},
                           {"MEGATRON_LM_PP_DEGREE", "2"},
                           {"MEGATRON_LM_GRADIENT_CLIPPING", "0.5"},
                           {"MEGATRON_LM_NUM_MICRO_BATCHES", "3"},
                           {"MEGATRON_LM_SEQUENCE_PARALLELISM", "True"},
                           {"MEGATRON_LM_RECOMPUTE_ACTIVATIONS", "True"},
                           {"MEGATRON_LM_USE_DISTRIBUTED_OPTIMIZER", "yes"}},
                          {"--micro-batch-size", "4"});
  EXPECT_THAT(got.problems, IsEmpty());
  EXPECT_THAT(got.args.warnings, IsEmpty());
  const ArgMap map = arg_map(got.args);
  EXPECT_EQ(map.at("tensor_model_parallel_size"), ArgValue(int64_t{2}));
  EXPECT_EQ(map.at("pipeline_model_parallel_size"), ArgValue(int64_t{2}));
  EXPECT_EQ(map.at("clip_grad"), ArgValue(0.5));
  EXPECT_EQ(map.at("global_batch_size"), ArgValue(int64_t{3 * 4 * 2}));
  EXPECT_EQ(map.at("sequence_parallel"), ArgValue(true));
  EXPECT_EQ(map.at("recompute_granularity"), ArgValue(std::string("selective")));
  EXPECT_EQ(map.at("use_distributed_optimizer"), ArgValue(true));
  EXPECT_EQ(map.at("bf16"), ArgValue(true));
}

TEST(AccelerateEnvironment, DegreesAreForLoadedModels) {
  const auto degrees = [](const Variables& variables) {
    ParallelConfig parallel;
    apply_accelerate_degrees(parallel, [&](const char* name) {
      const auto found = variables.find(name);
      return found == variables.end() ? nullptr : found->second.c_str();
    });
    return std::pair(parallel.tensor_model_parallel_size, parallel.pipeline_model_parallel_size);
  };
  Variables variables = {{"MEGATRON_LM_TP_DEGREE", "2"}, {"MEGATRON_LM_PP_DEGREE", "4"}};
  EXPECT_EQ(degrees(variables), std::pair(int64_t{1}, int64_t{1}));
  variables["ACCELERATE_USE_MEGATRON_LM"] = "true";
  EXPECT_EQ(degrees(variables), std::pair(int64_t{2}, int64_t{4}));
  variables["MEGATRON_LM_TP_DEGREE"] = "two";
  EXPECT_THAT(message_of<ConfigError>([&] { degrees(variables); }),
              HasSubstr("MEGATRON_LM_TP_DEGREE is two; it must be an integer of at least 1"));
}

TEST(AccelerateEnvironment, OtherMegatronArgsBecomeFlags) {
  const EnvironmentApplied got = environment_applied(
      {{"ACCELERATE_USE_MEGATRON_LM", "true"},
       {"MEGATRON_LM_OTHER_ARGS",
        R"({"position_embedding_type": "rotary", "attention_head_type": "multiquery", "min_lr": 0,
            "lr_decay_style": "cosine", "eval_iters": 7, "swiglu": true})"}},
      {"--eval-iters", "5"});
  EXPECT_THAT(got.problems, IsEmpty());
  EXPECT_THAT(got.args.warnings,
              ElementsAre(HasSubstr("overriding arguments for eval_iters:5 with eval_iters:7")));
  const ArgMap map = arg_map(got.args);
  EXPECT_EQ(map.at("position_embedding_type"), ArgValue(std::string("rope")));
  EXPECT_EQ(map.at("num_query_groups"), ArgValue(int64_t{1}));
  EXPECT_TRUE(got.args.transformer.group_query_attention);
  EXPECT_TRUE(got.args.activation.swiglu);
  EXPECT_EQ(got.args.optimizer.lr_decay_style, LrDecayStyle::kCosine);
  EXPECT_EQ(got.args.training.eval_iters, 7);
}

TEST(AccelerateEnvironment, WrongOtherMegatronArgsAreNamed) {
  const auto problems_of = [](const char* text) {
    return environment_applied(
               {{"ACCELERATE_USE_MEGATRON_LM", "true"}, {"MEGATRON_LM_OTHER_ARGS", text}}, {})
        .problems;
  };
  EXPECT_THAT(problems_of("{"), ElementsAre(HasSubstr("must hold one JSON object")));
  EXPECT_THAT(problems_of(R"({"no_such_thing": 1, "attention_head_type": "other"})"),
              ElementsAre(HasSubstr("attention_head_type \"other\" must be multihead or"),
                          HasSubstr("no_such_thing 1")));
}

TEST(AccelerateEnvironment, WinsOverFlagsWithAWarning) {
  const EnvironmentApplied got =
      environment_applied({{"ACCELERATE_USE_MEGATRON_LM", "true"}, {"MEGATRON_LM_TP_DEGREE", "2"}},
                          {"--tensor-model-parallel-size", "4"});
  EXPECT_THAT(got.args.warnings,
              ElementsAre(HasSubstr("overriding arguments for tensor_model_parallel_size:4 with "
                                    "tensor_model_parallel_size:2")));
}

TEST(AccelerateEnvironment, WithoutItsSwitchChangesThePrecisionOnly) {
  const EnvironmentApplied got = environment_applied(
      {{"ACCELERATE_MIXED_PRECISION", "fp16"}, {"MEGATRON_LM_TP_DEGREE", "2"}}, {});
  EXPECT_EQ(arg_map(got.args).at("fp16"), ArgValue(true));
  EXPECT_EQ(got.args.parallel.tensor_model_parallel_size, 1);
  EXPECT_EQ(arg_map(environment_applied({}, {}).args),
            arg_map(environment_applied({{"RANK", "0"}}, {}).args));
}

TEST(AccelerateEnvironment, DeepSpeedsVariablesAreItsFile) {
  Variables variables = {{"ACCELERATE_USE_DEEPSPEED", "true"},
                         {"ACCELERATE_MIXED_PRECISION", "bf16"},
                         {"ACCELERATE_DEEPSPEED_ZERO_STAGE", "1"},
                         {"ACCELERATE_DEEPSPEED_OFFLOAD_PARAM_DEVICE", "none"},
                         {"ACCELERATE_GRADIENT_ACCUMULATION_STEPS", "2"},
                         {"ACCELERATE_GRADIENT_CLIPPING", "0.5"}};
  const EnvironmentApplied got = environment_applied(variables, {"--micro-batch-size", "4"});
  EXPECT_THAT(got.problems, IsEmpty());
  EXPECT_TRUE(got.args.parallel.use_distributed_optimizer);
  EXPECT_EQ(got.args.training.global_batch_size, 4 * 2 * 8);
  EXPECT_EQ(got.args.optimizer.clip_grad, 0.5);
  variables["ACCELERATE_DEEPSPEED_ZERO_STAGE"] = "3";
  EXPECT_EQ(environment_applied(variables, {"--micro-batch-size", "4"}).args.parallel.zero_stage,
            3);
}

TEST(AccelerateEnvironment, FaultsHaveSentences) {
  const EnvironmentApplied got =
      environment_applied({{"ACCELERATE_USE_MEGATRON_LM", "1"},
                           {"ACCELERATE_MIXED_PRECISION", "fp8"},
                           {"MEGATRON_LM_TP_DEGREE", "two"},
                           {"MEGATRON_LM_GRADIENT_CLIPPING", "-1"},
                           {"MEGATRON_LM_USE_DISTRIBUTED_OPTIMIZER", "perhaps"}},
                          {});
  EXPECT_THAT(
      got.problems,
      ElementsAre(HasSubstr("ACCELERATE_MIXED_PRECISION is fp8; it must be no, fp16 or bf16"),
                  HasSubstr("MEGATRON_LM_TP_DEGREE is two; it must be an integer of at least 1"),
                  HasSubstr("OPTIMIZER is perhaps; it must be true or false"),
                  HasSubstr("GRADIENT_CLIPPING is -1; it must be a number of at least 0")));
}

}  // namespace
}  // namespace megatron::frontends

#include "annex/deepspeed/config.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "annex/deepspeed/relaxed_json.h"
#include "megatron/core/error.h"
#include "tests/support/json_lines.h"
#include "tests/support/message_of.h"
#include "tests/support/temporary_directory.h"

namespace megatron::frontends {
namespace {

using nlohmann::json;
using testing::HasSubstr;

DeepSpeedConfig read(const json& line) {
  const json file = line.contains("config")
                        ? line["config"]
                        : read_relaxed_json(line["text"].get<std::string>(), "ds.json");
  return deepspeed_config_of(file, "ds.json", line["world_size"]);
}

void expect_equal(const DeepSpeedConfig& got, const json& want) {
  EXPECT_EQ(got.train_batch_size, want["train_batch_size"].get<double>());
  EXPECT_EQ(got.train_micro_batch_size_per_gpu, want["train_micro_batch_size_per_gpu"]);
  EXPECT_EQ(got.gradient_accumulation_steps, want["gradient_accumulation_steps"]);
  EXPECT_EQ(got.zero_stage, want["zero_optimization_stage"]);
  const json& clip = want["gradient_clipping"];
  if (clip == "auto") {
    EXPECT_EQ(got.gradient_clipping, std::nullopt);
  } else {
    EXPECT_EQ(got.gradient_clipping, clip == "1.0" ? 1.0 : clip.get<double>());
  }
  const json fp16 = want.value("fp16_enabled", json(false));
  EXPECT_EQ(got.fp16.enabled,
            fp16 == "auto" ? std::nullopt : std::optional(fp16 == true || fp16 == "true"));
  EXPECT_EQ(got.bf16, std::optional(want.value("bfloat16_enabled", false)));
  if (want.contains("dynamic_loss_scale_args") && !want["dynamic_loss_scale_args"].is_null()) {
    const json& scale = want["dynamic_loss_scale_args"];
    EXPECT_EQ(1LL << got.fp16.initial_scale_power, scale["init_scale"].get<int64_t>());
    EXPECT_EQ(got.fp16.loss_scale_window, scale["scale_window"]);
    EXPECT_EQ(got.fp16.hysteresis, scale["delayed_shift"]);
    EXPECT_EQ(got.fp16.min_loss_scale, scale["min_scale"]);
  }
}

// The answers of DeepSpeed 0.8.3 and 0.19.8 to 136 files. Where one version accepts and the other
// refuses, ours may do either.
TEST(DeepSpeedConfig, FilesAreResolvedOrRefusedAsThere) {
  int resolved = 0;
  int refused = 0;
  for (const json& line : golden_lines("deepspeed/config.jsonl")) {
    const std::string name = line["name"];
    SCOPED_TRACE(name);
    if (line.contains("passed_as") || name == "missing_file") continue;  // tested below
    if (line.contains("old_error") != line.contains("new_error")) continue;
    if (name == "triad_micro_auto") {  // there a TypeError; here "auto" counts as absent
      EXPECT_EQ(read(line).train_micro_batch_size_per_gpu, 4);
      continue;
    }
    if (!line.contains("old_error")) {
      expect_equal(read(line), line["old"]);
      ++resolved;
      continue;
    }
    // Features that nobody has here are refused in one go with what flags contradict.
    bool is_refused = false;
    try {
      is_refused = !read(line).unavailable.empty();
    } catch (const Error&) {
      is_refused = true;
    }
    EXPECT_TRUE(is_refused);
    ++refused;
  }
  EXPECT_GE(resolved, 70);
  EXPECT_GE(refused, 30);
}

std::string message(const json& file, int64_t ranks = 1) {
  return message_of<ConfigError>([&] { deepspeed_config_of(file, "ds.json", ranks); });
}

TEST(DeepSpeedConfig, FaultsHaveSentences) {
  EXPECT_THAT(message({{"train_batch_size", 16}, {"train_micro_batch_size_per_gpu", 3}}, 4),
              HasSubstr("ds.json: train_batch_size 16 must be train_micro_batch_size_per_gpu 3 "
                        "times gradient_accumulation_steps 1 times 4 data-parallel ranks"));
  EXPECT_THAT(message(json::object()), HasSubstr("neither train_batch_size nor train_micro"));
  const json both = {{"train_batch_size", 8},
                     {"fp16", {{"enabled", true}, {"hysteresis", 0}}},
                     {"bf16", {{"enabled", true}}},
                     {"zero_optimization", {{"stage", 4}, {"bucket_size", 5}}}};
  const std::string text = message(both);
  EXPECT_THAT(text, HasSubstr("fp16.hysteresis is 0; it must be an integer of at least 1"));
  EXPECT_THAT(text, HasSubstr("fp16.enabled and bf16.enabled exclude each other"));
  EXPECT_THAT(text, HasSubstr("zero_optimization.stage is 4; it must be 0, 1, 2 or 3"));
  EXPECT_THAT(text, HasSubstr("zero_optimization.bucket_size is not a setting of DeepSpeed"));
  EXPECT_THAT(message({{"train_batch_size", "8"}}), HasSubstr("train_batch_size is \"8\""));
  EXPECT_THAT(message(json::array()), HasSubstr("holds no map of keys and values"));
}

TEST(DeepSpeedConfig, WhatIsMissingHereIsNamed) {
  const json file = {
      {"train_batch_size", 8},
      {"zero_optimization", {{"stage", 3}, {"offload_optimizer", {{"device", "nvme"}}}}},
      {"curriculum_learning", {{"enabled", true}}},
      {"amp", {{"enabled", false}}},
      {"steps_per_print", 10},
      {"no_such_key", 1}};
  const DeepSpeedConfig config = deepspeed_config_of(file, "ds.json", 1);
  EXPECT_THAT(
      config.unavailable,
      testing::UnorderedElementsAre(
          HasSubstr("zero_optimization.offload_optimizer.device nvme is not available yet"),
          HasSubstr(
              "curriculum_learning with curriculum_type \"seqlen\" and schedule_type \"\" is")));
  EXPECT_THAT(config.without_effect, testing::ElementsAre("steps_per_print"));
  EXPECT_THAT(config.unknown, testing::ElementsAre("no_such_key"));
}

// The lengths that DeepSpeed's scheduler gives for this file.
TEST(DeepSpeedConfig, ReadsACurriculum) {
  const std::vector<json> lines = golden_lines("deepspeed/config.jsonl");
  const json line = *std::find_if(lines.begin(), lines.end(), [](const json& each) {
    return each["name"] == "curriculum_legacy";
  });
  const CurriculumConfig linear = read(line).curriculum;
  EXPECT_THAT(problems(linear, 128, 1), testing::IsEmpty());
  const Curriculum curriculum(linear);
  std::vector<int64_t> lengths;
  for (const int64_t iteration : {1, 2, 3, 10, 15, 29, 30, 31}) {
    lengths.push_back(curriculum.length_at(iteration));
  }
  EXPECT_THAT(lengths, testing::ElementsAre(12, 16, 20, 48, 68, 124, 128, 128));

  json file = line["config"];
  json& part = file["curriculum_learning"];
  part["schedule_type"] = "fixed_root";
  part["schedule_config"]["root_degree"] = 2;
  EXPECT_EQ(deepspeed_config_of(file, "ds.json", 1).curriculum.degree, 2);
  part["schedule_type"] = "fixed_discrete";
  part["schedule_config"] = {{"difficulty", {8, 64, 128}}, {"max_step", {5, 10}}};
  const CurriculumConfig discrete = deepspeed_config_of(file, "ds.json", 1).curriculum;
  EXPECT_THAT(discrete.lengths, testing::ElementsAre(8, 64, 128));
  EXPECT_THAT(discrete.last_iterations, testing::ElementsAre(5, 10));
  part["schedule_config"]["max_step"] = "5";
  EXPECT_THAT(message(file), HasSubstr("curriculum_learning.schedule_config.max_step is \"5\"; it "
                                       "must be a list of integers"));
  part["enabled"] = false;
  EXPECT_FALSE(deepspeed_config_of(file, "ds.json", 1).curriculum.is_on());
}

TEST(DeepSpeedConfig, AutoBatchesAreThoseOfTheFlags) {
  const json file = {{"train_batch_size", "auto"}, {"train_micro_batch_size_per_gpu", "auto"}};
  const DeepSpeedConfig config =
      deepspeed_config_of(file, "ds.json", 2, {.micro_batch_size = 2, .global_batch_size = 12});
  EXPECT_EQ(config.gradient_accumulation_steps, 3);
}

TEST(DeepSpeedConfig, IsAFileOrBase64) {
  const TemporaryDirectory directory;
  const json file = {{"train_batch_size", 4}, {"bf16", {{"enabled", true}}}};
  EXPECT_EQ(load_deepspeed_json(directory.write("ds.json", file.dump())), file);
  EXPECT_EQ(
      load_deepspeed_json("eyJ0cmFpbl9iYXRjaF9zaXplIjogNCwgImJmMTYiOiB7ImVuYWJsZWQiOiB0cnVlfX0="),
      file);
  EXPECT_THROW(load_deepspeed_json("/no/such/file.json"), IoError);
}

}  // namespace
}  // namespace megatron::frontends

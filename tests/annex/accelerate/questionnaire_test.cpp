#include "annex/accelerate/questionnaire.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <sstream>

#include "annex/accelerate/key_menu.h"
#include "megatron/core/error.h"
#include "tests/annex/accelerate/versions.h"
#include "tests/support/json_lines.h"
#include "tests/support/message_of.h"

namespace megatron::frontends {
namespace {

using nlohmann::json;
using testing::HasSubstr;

ClusterConfig answered(const std::vector<std::string>& answers, AccelerateVersion version) {
  std::string lines;
  for (const std::string& answer : answers) lines += answer + "\n";
  std::istringstream input(lines);
  Prompt prompt(input, false);
  ClusterConfig config = ask_for_cluster_config(prompt, version);
  std::string rest;
  EXPECT_FALSE(std::getline(input, rest)) << "an answer is left: " << rest;
  return config;
}

// The answers that were typed into the real program, and the file that it wrote.
TEST(Questionnaire, GivesTheFilesOfTheOriginals) {
  int files = 0;
  for (const json& line : golden_lines("accelerate/config.jsonl")) {
    SCOPED_TRACE(line["version"].get<std::string>() + " " + line["name"].get<std::string>());
    std::vector<std::string> answers = line["answers"];
    json want_path;
    for (std::string& answer : answers) {  // the file lies elsewhere here
      if (answer == "cfg/ds_zero2.json") {
        answer = source_path("tests/golden/accelerate/ds_zero2.json");
      }
    }
    const AccelerateVersion version = version_named(line["version"]);
    if (line["exit_status"] != 0) {
      EXPECT_THROW(answered(answers, version), ConfigError);
      continue;
    }
    ClusterConfig config = answered(answers, version);
    json& deepspeed = config.values["deepspeed_config"];
    if (deepspeed.contains("deepspeed_config_file")) {
      deepspeed["deepspeed_config_file"] = "cfg/ds_zero2.json";
    }
    const bool is_json = line["extension"] == ".json";
    EXPECT_EQ(is_json ? json_file(config, version) : yaml_file(config, version),
              line["file"].get<std::string>());
    ++files;
  }
  EXPECT_EQ(files, 57);
}

constexpr AccelerateVersion kQuestionnaireDocument = AccelerateVersion::k0_14;

TEST(Questionnaire, TheDocumentsAnswersGiveTheDocumentsFile) {
  const ClusterConfig config =
      answered({"0", "2", "", "", "", "yes", "2", "", "2", "2", "", "", "", "4", "bf16"},
               kQuestionnaireDocument);
  EXPECT_EQ(yaml_file(config, kQuestionnaireDocument),
            "compute_environment: LOCAL_MACHINE\n"
            "deepspeed_config: {}\n"
            "distributed_type: MEGATRON_LM\n"
            "downcast_bf16: 'no'\n"
            "fsdp_config: {}\n"
            "machine_rank: 0\n"
            "main_process_ip: null\n"
            "main_process_port: null\n"
            "main_training_function: main\n"
            "megatron_lm_config:\n"
            "  megatron_lm_gradient_clipping: 1.0\n"
            "  megatron_lm_num_micro_batches: 2\n"
            "  megatron_lm_pp_degree: 2\n"
            "  megatron_lm_recompute_activations: true\n"
            "  megatron_lm_sequence_parallelism: true\n"
            "  megatron_lm_tp_degree: 2\n"
            "  megatron_lm_use_distributed_optimizer: true\n"
            "mixed_precision: bf16\n"
            "num_machines: 1\n"
            "num_processes: 4\n"
            "rdzv_backend: static\n"
            "same_network: true\n"
            "use_cpu: false\n");
}

TEST(Questionnaire, AsksAgainForWhatCannotBe) {
  // SageMaker, a TPU, no machine, 3 GPUs for two tensor ranks.
  const ClusterConfig config = answered({"1", "0", "3", "9", "2", "0", "1", "no", "no",  "yes", "2",
                                         "",  "0", "1", "",  "",  "",  "3", "4",  "fp8", "fp16"},
                                        kQuestionnaireDocument);
  EXPECT_EQ(config.integer("num_processes"), 4);
  EXPECT_EQ(config.text("mixed_precision"), "fp16");
}

TEST(Questionnaire, NamesTheQuestionThatHasNoAnswer) {
  EXPECT_THAT(message_of<ConfigError>([] {
                answered({"0", "2", "1"}, kQuestionnaireDocument);
              }),
              HasSubstr("the answers end before the question \"Use DeepSpeed?"));
}

TEST(KeyMenu, ArrowsMoveAndDigitsJump) {
  KeyMenu menu(12, 0);
  menu.press("\033[A");
  EXPECT_EQ(menu.row(), 0u);
  menu.press("\033[B");
  menu.press("j");
  EXPECT_EQ(menu.row(), 2u);
  menu.press("1");
  EXPECT_EQ(menu.row(), 1u);
  menu.press("1");
  EXPECT_EQ(menu.row(), 11u);
  menu.press("\033[B");
  EXPECT_EQ(menu.row(), 11u);
  menu.press("k");
  EXPECT_EQ(menu.row(), 10u);
  EXPECT_FALSE(menu.is_done());
  menu.press("3\n");
  EXPECT_EQ(menu.row(), 3u);
  EXPECT_TRUE(menu.is_done());
}

}  // namespace
}  // namespace megatron::frontends

#include "annex/accelerate/cluster_config.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>

#include "annex/accelerate/config_file.h"
#include "megatron/core/error.h"
#include "tests/annex/accelerate/versions.h"
#include "tests/support/json_lines.h"
#include "tests/support/message_of.h"
#include "tests/support/temporary_directory.h"

namespace megatron::frontends {
namespace {

using nlohmann::json;
using testing::ElementsAre;
using testing::HasSubstr;

constexpr const char* kDocument =
    "distributed_type: MEGATRON_LM\nmegatron_lm_config:\n  megatron_lm_tp_degree: 2\n"
    "mixed_precision: bf16\nnum_processes: 4\n";

class ClusterConfigTest : public testing::Test {
 protected:
  ClusterConfig load(const std::string& text, const std::string& extension = "yaml",
                     bool is_strict = false) {
    const std::filesystem::path path = directory_.path() / ("config." + extension);
    std::ofstream(path) << text;
    warnings_.clear();
    return load_cluster_config(path, is_strict, warnings_);
  }
  std::string message(const std::string& text, bool is_strict = false) {
    return message_of<FormatError>([&] { load(text, "yaml", is_strict); });
  }

  TemporaryDirectory directory_;
  std::vector<std::string> warnings_;
};

// Texts that the real program loads and writes again, and texts that it refuses. We also accept
// `TPU`, which only 0.27 reads, and a tab after a colon; `no` and `NO` without quotes, which the
// originals take for booleans, have their evident meaning.
TEST_F(ClusterConfigTest, WritesWhatTheOriginalsWrite) {
  int compared = 0;
  for (const json& line : golden_lines("accelerate/round_trips.jsonl")) {
    const std::string name = line["name"];
    SCOPED_TRACE(line["version"].get<std::string>() + " " + name);
    const std::string text = line["text"];
    const std::string extension = line["ext"];
    const bool is_accepted_here = name == "tpu_old_name" || name == "tab";
    if (line.contains("error") && !is_accepted_here) {
      EXPECT_THROW(load(text, extension), FormatError);
      continue;
    }
    if (name == "megatron_config_text") {  // there it fails later, without a sentence
      EXPECT_THAT(message(text), HasSubstr("megatron_lm_config is \"abc\"; it must be a map"));
      continue;
    }
    const ClusterConfig config = load(text, extension);
    if (name == "bool_mixed_precision") {
      EXPECT_EQ(config.text("mixed_precision"), "no");
      EXPECT_EQ(config.text("distributed_type"), "NO");
      continue;
    }
    if (line.contains("error")) continue;
    EXPECT_EQ(yaml_file(config, version_named(line["version"])),
              line["to_yaml"].get<std::string>());
    EXPECT_EQ(json_file(config, version_named(line["version"])),
              line["to_json"].get<std::string>());
    ++compared;
  }
  EXPECT_EQ(compared, 3 * 7 + 1);
}

TEST_F(ClusterConfigTest, UnknownKeysAreWarnedOfOrRefused) {
  load(std::string(kDocument) + "no_such_key: 1\n");
  ASSERT_EQ(warnings_.size(), 1u);
  EXPECT_THAT(warnings_[0], HasSubstr("unknown keys no_such_key have no effect"));
  EXPECT_THAT(message(std::string(kDocument) + "no_such_key: 1\n", true),
              HasSubstr("unknown keys no_such_key; remove them"));
}

TEST_F(ClusterConfigTest, OlderKeysAreRead) {
  const ClusterConfig config = load(
      "distributed_type: MULTI_GPU\nfp16: true\ndynamo_backend: INDUCTOR\nnum_processes: '2'\n");
  EXPECT_EQ(config.text("mixed_precision"), "fp16");
  EXPECT_EQ(config.map("dynamo_config"), json({{"dynamo_backend", "INDUCTOR"}}));
  EXPECT_EQ(config.integer("num_processes"), 2);
}

TEST_F(ClusterConfigTest, AllFaultsAreReportedTogether) {
  const std::string text = message(
      "distributed_type: FOO\nmixed_precision: fp32\nnum_processes: many\nuse_cpu: 3\nfp16: 1\n");
  EXPECT_THAT(text, HasSubstr("distributed_type is FOO; use one of NO, MULTI_CPU"));
  EXPECT_THAT(text, HasSubstr("mixed_precision is fp32; use one of no, fp16, bf16, fp8"));
  EXPECT_THAT(text, HasSubstr("num_processes is \"many\"; it must be an integer"));
  EXPECT_THAT(text, HasSubstr("use_cpu is 3; it must be true or false"));
  EXPECT_THAT(message("num_processes: 1\n"), HasSubstr("distributed_type is missing"));
  EXPECT_THAT(message("compute_environment: MOON\ndistributed_type: NO\n"),
              HasSubstr("compute_environment is MOON; only LOCAL_MACHINE"));
  EXPECT_THAT(message("distributed_type: NO\nfp16: 1\n"), HasSubstr("fp16 is 1; it must be true"));
  EXPECT_THAT(message(""), HasSubstr("holds no map of keys and values"));
}

TEST_F(ClusterConfigTest, NumbersThatDoNotFitHaveASentence) {
  const auto wrong = [&](const char* key, const json& value) {
    ClusterConfig config = load(kDocument);
    config.values[key] = value;
    return problems(config);
  };
  EXPECT_THAT(wrong("num_processes", 4), ElementsAre());
  EXPECT_THAT(wrong("num_processes", 0), ElementsAre(HasSubstr("num_processes is 0; it must be")));
  EXPECT_THAT(wrong("num_machines", 0), ElementsAre(HasSubstr("num_machines is 0; it must be")));
  EXPECT_THAT(wrong("num_machines", 3),
              ElementsAre(HasSubstr("num_processes 4 must be a multiple of num_machines 3")));
  EXPECT_THAT(wrong("machine_rank", 1),
              ElementsAre(HasSubstr("machine_rank 1 must be between 0 and 0")));
  EXPECT_THAT(wrong("num_processes", 3),
              ElementsAre(HasSubstr(
                  "num_processes 3 must be a multiple of megatron_lm_tp_degree 2 times")));
  EXPECT_THAT(wrong("megatron_lm_config", {{"megatron_lm_tp_degree", "2"}}),
              ElementsAre(HasSubstr("megatron_lm_tp_degree is \"2\"; it must be an integer")));
  ClusterConfig config = load("distributed_type: MULTI_GPU\nnum_processes: 1\n");
  EXPECT_THAT(problems(config), ElementsAre(HasSubstr("MULTI_GPU needs at least 2 processes")));
}

}  // namespace
}  // namespace megatron::frontends

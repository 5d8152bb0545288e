#include "annex/accelerate/launch_plan.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "annex/accelerate/config_file.h"
#include "megatron/core/error.h"
#include "megatron/frontends/leading_flags.h"
#include "tests/support/json_lines.h"
#include "tests/support/message_of.h"
#include "tests/support/temporary_directory.h"

namespace megatron::frontends {
namespace {

using nlohmann::json;
using testing::HasSubstr;
using Words = std::vector<std::string>;

constexpr const char* kLaunchPlanDocument =
    "distributed_type: MEGATRON_LM\n"
    "enable_cpu_affinity: true\n"
    "megatron_lm_config:\n"
    "  megatron_lm_gradient_clipping: 0.5\n"
    "  megatron_lm_tp_degree: 2\n"
    "mixed_precision: bf16\n"
    "num_processes: 4\n";

// The plan of a command line and the text of a file; empty: no file.
LaunchPlan planned(const Words& words, const std::string& file, const ThisMachine& machine) {
  LaunchOptions options;
  FlagTable flags = launch_option_table(options);
  const ParsedFlags parsed = flags.parse(words);
  EXPECT_THAT(parsed.problems, testing::IsEmpty());
  std::optional<ClusterConfig> config;
  if (!file.empty()) {
    const TemporaryDirectory directory;
    std::vector<std::string> warnings;
    const char* const name = file[0] == '{' ? "config.json" : "config.yaml";
    config = load_cluster_config(directory.write(name, file), true, warnings);
  }
  return launch_plan(options, config, machine);
}

const char* name_of(LaunchKind kind) {
  switch (kind) {
    case LaunchKind::kSimple:
      return "simple";
    case LaunchKind::kMultiDevice:
      return "multi_gpu";
    case LaunchKind::kMegatron:
      return "megatron_lm";
    case LaunchKind::kDeepSpeed:
      return "deepspeed";
    case LaunchKind::kFsdp:
      return "fsdp";
  }
  return "";
}

void expect_place(const LaunchPlan& plan, const json& torchrun) {
  EXPECT_EQ(std::to_string(plan.processes_per_machine()),
            torchrun["nproc_per_node"].get<std::string>());
  EXPECT_EQ(std::to_string(plan.num_machines), torchrun.value("nnodes", "1"));
  EXPECT_EQ(plan.machine_rank, torchrun.value("node_rank", 0));
  if (plan.num_machines == 1) return;
  const std::string endpoint = plan.main_process_ip + ":" + std::to_string(plan.main_process_port);
  EXPECT_EQ(endpoint, torchrun.contains("rdzv_endpoint")
                          ? torchrun["rdzv_endpoint"].get<std::string>()
                          : torchrun["master_addr"].get<std::string>() + ":" +
                                torchrun["master_port"].get<std::string>());
}

TEST(LaunchPlan, EnvironmentsAreThoseOfTheOriginal) {
  int compared = 0;
  int refused = 0;
  for (const json& line : golden_lines("accelerate/launch.jsonl")) {
    const std::string name = line["name"];
    SCOPED_TRACE(name);
    Words words = line["argv"];
    words.insert(words.begin(), {"--compat", "1.0"});
    const ThisMachine machine = {.num_gpus = line["gpus"],
                                 .num_cores = 2,
                                 .omp_num_threads = line.value("omp_num_threads", "")};
    const auto plan = [&] { return planned(words, line.value("config", ""), machine); };
    // Booleans without quotes crash the original; here they mean what they say. A missing file is
    // found before there is a plan. Two kinds at once and FSDP are refused here.
    const bool is_accepted_here = name == "bare no" || name == "distributed_type bare NO";
    const bool is_refused_here = name == "deepspeed and megatron" || name == "fsdp by options";
    if (name == "missing config file") continue;
    if ((line.contains("error") && !is_accepted_here) || is_refused_here) {
      EXPECT_THROW(plan(), Error);
      ++refused;
      continue;
    }
    const LaunchPlan got = plan();
    if (is_accepted_here) {
      EXPECT_EQ(got.environment.at("ACCELERATE_MIXED_PRECISION"), "no");
      continue;
    }
    EXPECT_EQ(name_of(got.kind), line["kind"].get<std::string>());
    EXPECT_EQ(json(got.environment), line["env"]);
    if (line.contains("torchrun")) expect_place(got, line["torchrun"]);
    ++compared;
  }
  EXPECT_GE(compared, 29);
  EXPECT_GE(refused, 8);
}

TEST(LaunchPlan, TypedOptionsWinOverTheFile) {
  const LaunchPlan plan = planned({"--megatron_lm_tp_degree", "4", "--mixed_precision=fp16"},
                                  kLaunchPlanDocument, {.num_gpus = 4, .omp_num_threads = {}});
  EXPECT_EQ(plan.environment.at("MEGATRON_LM_TP_DEGREE"), "4");
  EXPECT_EQ(plan.environment.at("MEGATRON_LM_GRADIENT_CLIPPING"), "0.5");
  EXPECT_EQ(plan.environment.at("ACCELERATE_MIXED_PRECISION"), "fp16");
  EXPECT_EQ(plan.environment.at("ACCELERATE_CPU_AFFINITY"), "1");
}

TEST(LaunchPlan, FaultsHaveSentences) {
  const auto message = [](const Words& words, const std::string& file) {
    return message_of<ConfigError>(
        [&] { planned(words, file, {.num_gpus = 0, .omp_num_threads = {}}); });
  };
  EXPECT_THAT(message({"--multi_gpu", "--use_deepspeed"}, kLaunchPlanDocument),
              HasSubstr("--multi_gpu and --use_deepspeed exclude each other"));
  EXPECT_THAT(message({"--num_processes", "x"}, kLaunchPlanDocument),
              HasSubstr("--num_processes x must be an integer"));
  EXPECT_THAT(message({"--num_machines", "3"}, kLaunchPlanDocument),
              HasSubstr("num_processes 4 must be a multiple of num_machines 3"));
  EXPECT_THAT(message({"--num_machines", "2"}, kLaunchPlanDocument),
              HasSubstr("num_machines 2 needs main_process_ip"));
  EXPECT_THAT(message({"--machine_rank", "1"}, kLaunchPlanDocument),
              HasSubstr("machine_rank 1 must be between 0 and 0"));
  EXPECT_THAT(message({"--main_process_port", "70000"}, kLaunchPlanDocument),
              HasSubstr("main_process_port 70000 must be between 0 and 65535"));
  EXPECT_THAT(message({"--multi_gpu", "--num_processes", "1"}, ""),
              HasSubstr("--multi_gpu needs at least 2 processes"));
  EXPECT_THAT(message({"--use_fsdp"}, kLaunchPlanDocument), HasSubstr("FSDP is not available"));
  EXPECT_THAT(message({"--mixed_precision", "fp8"}, kLaunchPlanDocument),
              HasSubstr("mixed_precision fp8 is not available"));
  EXPECT_THAT(message({}, "distributed_type: XLA\nnum_processes: 1\n"),
              HasSubstr("distributed_type XLA is not available"));
  EXPECT_THAT(message({}, "distributed_type: NO\n"), HasSubstr("the file has no num_processes"));
  EXPECT_THAT(message({"--max_restarts", "-2"}, kLaunchPlanDocument),
              HasSubstr("--max_restarts -2 must be"));
}

TEST(LaunchPlan, WarnsOfUnknownSettings) {
  const LaunchPlan plan = planned({}, std::string(kLaunchPlanDocument) + "main_process_port: 0\n",
                                  {.omp_num_threads = {}});
  EXPECT_THAT(plan.warnings, testing::IsEmpty());
  const LaunchPlan other = planned(
      {},
      "distributed_type: MEGATRON_LM\nnum_processes: 1\nmegatron_lm_config: {megatron_lm_x: 1}\n",
      {.omp_num_threads = {}});
  EXPECT_THAT(other.warnings,
              testing::ElementsAre("megatron_lm_config: megatron_lm_x has no effect"));
}

TEST(LaunchPlan, PluginFieldsTravelToTheRanks) {
  const LaunchPlan plan = planned({},
                                  std::string(kLaunchPlanDocument) +
                                      "num_machines: 1\n"
                                      "main_process_port: 29511\n",
                                  {.num_gpus = 4, .omp_num_threads = ""});
  EXPECT_FALSE(plan.environment.contains("MEGATRON_LM_OTHER_ARGS"));
  const std::string file =
      "distributed_type: MEGATRON_LM\n"
      "num_processes: 4\n"
      "main_process_port: 29511\n"
      "megatron_lm_config:\n"
      "  megatron_lm_tp_degree: 2\n"
      "  megatron_lm_min_lr: 1.0e-6\n"
      "  eval_iters: 7\n"
      "  other_megatron_args:\n"
      "    position_embedding_type: rotary\n"
      "    eval_iters: 9\n";
  const LaunchPlan fields = planned({}, file, {.num_gpus = 4, .omp_num_threads = ""});
  EXPECT_THAT(fields.warnings, testing::IsEmpty());
  EXPECT_EQ(json::parse(fields.environment.at("MEGATRON_LM_OTHER_ARGS")),
            json({{"min_lr", 1e-6}, {"eval_iters", 9}, {"position_embedding_type", "rotary"}}));
}

TEST(LeadingFlags, TheScriptIsTheFirstWordThatIsNoFlag) {
  LaunchOptions options;
  const FlagTable flags = launch_option_table(options);
  const auto end = [&](const Words& words) { return end_of_leading_flags(flags, words); };
  EXPECT_EQ(end({"--multi_gpu", "--num-processes", "2", "--cpu", "train.py", "--lr", "1"}), 4u);
  EXPECT_EQ(end({"--num_processes=2", "train.py"}), 1u);
  EXPECT_EQ(end({"train.py"}), 0u);
  EXPECT_EQ(end({"-m", "train.py"}), 1u);
  EXPECT_EQ(end({"--num_processes"}), 1u);
  EXPECT_EQ(end({"--", "train.py"}), 1u);
}

}  // namespace
}  // namespace megatron::frontends

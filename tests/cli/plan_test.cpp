#include "megatron/cli/plan.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "megatron/core/error.h"
#include "tests/support/captured_output.h"
#include "tests/support/message_of.h"
#include "tests/support/source_path.h"

namespace megatron::cli {
namespace {

nlohmann::json planned(const std::string& flags) {
  std::vector<std::string> words = {"--json", "--device", "cuda", "--bf16"};
  std::istringstream text(flags);
  for (std::string word; text >> word;) words.push_back(word);
  CapturedStdout captured_out;
  const int code = plan(words);
  const std::string out = captured_out.text();
  EXPECT_EQ(code, 0) << flags;
  return nlohmann::json::parse(out);
}

std::string report(std::vector<std::string> words) {
  CapturedStdout captured_out;
  EXPECT_EQ(plan(words), 0);
  return captured_out.text();
}

struct Measured {
  const char* flags;
  int64_t seq_length;
  double tokens_per_second;  // of each GPU
};
// What H200s took: one on 2026-11-22 at 1ce9c5d (tensorwise at be3edfc, when products had fast
// sums; dropout on 2026-11-23, with attention on warpgroups), two at 7a95672 (offload on
// 2026-11-23, docs/zero.md), eight on 2026-11-20 (docs/performance.md). Context parallelism on
// two, on 2026-11-23 at 2b3a504: since then a ring makes fewer calls, and heads are exchanged by
// halves.
const Measured kMeasured[] = {
    {"--workload 345m --micro-batch-size 32 --global-batch-size 64", 1024, 215'406},
    {"--workload 1.5b --micro-batch-size 16 --global-batch-size 32", 1024, 54'372},
    {"--workload 1.3b --micro-batch-size 8 --global-batch-size 16", 2048, 68'193},
    {"--workload 345m --micro-batch-size 32 --global-batch-size 64 --fp8-format hybrid", 1024,
     274'339},
    {"--workload 1.5b --micro-batch-size 16 --global-batch-size 32 --fp8-format hybrid", 1024,
     73'117},
    {"--workload 1.3b --micro-batch-size 8 --global-batch-size 16 --fp8-format hybrid", 2048,
     92'555},
    {"--workload 1.3b --micro-batch-size 8 --global-batch-size 16 --fp8-format hybrid "
     "--fp8-recipe tensorwise",
     2048, 89'012},
    {"--workload 345m --micro-batch-size 32 --global-batch-size 64 --attention-dropout 0.1 "
     "--hidden-dropout 0.1",
     1024, 204'902},
    {"--workload 1.3b --micro-batch-size 8 --global-batch-size 16 --attention-dropout 0.1 "
     "--hidden-dropout 0.1",
     2048, 63'950},
    {"--workload 1.3b --micro-batch-size 8 --global-batch-size 64 --world-size 2 "
     "--use-distributed-optimizer --overlap-grad-reduce --overlap-param-gather",
     2048, 67'544},
    {"--workload 1.3b --micro-batch-size 8 --global-batch-size 16 --world-size 2 "
     "--tensor-model-parallel-size 2 --sequence-parallel",
     2048, 56'834},
    {"--workload 1.3b --micro-batch-size 8 --global-batch-size 16 --world-size 2 "
     "--tensor-model-parallel-size 2 --sequence-parallel --tp-comm-overlap",
     2048, 60'061},
    {"--workload 1.3b --micro-batch-size 8 --global-batch-size 64 --world-size 2 "
     "--pipeline-model-parallel-size 2",
     2048, 58'464},
    {"--workload 6.7b --micro-batch-size 4 --global-batch-size 32 --world-size 2 "
     "--use-distributed-optimizer --overlap-grad-reduce --overlap-param-gather",
     2048, 14'315},
    {"--workload 6.7b --micro-batch-size 4 --global-batch-size 8 --world-size 2 "
     "--tensor-model-parallel-size 2 --sequence-parallel",
     2048, 12'582},
    {"--workload llama3-8b --micro-batch-size 1 --global-batch-size 4 --world-size 2 "
     "--tensor-model-parallel-size 2 --sequence-parallel",
     8192, 10'068},
    {"--workload 6.7b --micro-batch-size 4 --global-batch-size 8 --world-size 2 "
     "--tensor-model-parallel-size 2 --sequence-parallel --tp-comm-overlap",
     2048, 13'024},
    {"--workload llama3-8b --micro-batch-size 1 --global-batch-size 4 --world-size 2 "
     "--tensor-model-parallel-size 2 --sequence-parallel --tp-comm-overlap",
     8192, 10'432},
    {"--workload 1.3b --micro-batch-size 8 --global-batch-size 128 --world-size 8 "
     "--use-distributed-optimizer --overlap-grad-reduce",
     2048, 65'615},
    {"--workload 1.3b --micro-batch-size 8 --global-batch-size 256 --world-size 8 "
     "--pipeline-model-parallel-size 2 --use-distributed-optimizer --overlap-grad-reduce",
     2048, 54'436},
    {"--workload 6.7b --num-layers 40 --hidden-size 5120 --num-attention-heads 40 "
     "--micro-batch-size 2 --global-batch-size 4 --world-size 2 --zero-stage 3 "
     "--optimizer-cpu-offload",
     2048, 593},
    {"--workload 1.3b --micro-batch-size 8 --global-batch-size 256 --world-size 8 "
     "--pipeline-model-parallel-size 4 --num-layers-per-virtual-pipeline-stage 2 "
     "--use-distributed-optimizer --overlap-grad-reduce",
     2048, 51'607},
    {"--workload 1.3b --micro-batch-size 8 --global-batch-size 16 --world-size 2 "
     "--context-parallel-size 2 --cp-comm-type p2p",
     2048, 54'208},
    {"--workload 1.3b --micro-batch-size 8 --global-batch-size 16 --world-size 2 "
     "--context-parallel-size 2 --cp-comm-type all_gather",
     2048, 52'908},
    {"--workload 1.3b --micro-batch-size 8 --global-batch-size 16 --world-size 2 "
     "--context-parallel-size 2 --cp-comm-type a2a",
     2048, 54'979},
    {"--workload 1.3b --micro-batch-size 1 --global-batch-size 1 --world-size 2 --seq-length "
     "131072 "
     "--max-position-embeddings 131072 --context-parallel-size 2 --cp-comm-type p2p",
     131072, 9'637},
    {"--workload 1.3b --micro-batch-size 1 --global-batch-size 1 --world-size 2 --seq-length "
     "131072 "
     "--max-position-embeddings 131072 --context-parallel-size 2 --cp-comm-type all_gather",
     131072, 7'883},
    {"--workload 1.3b --micro-batch-size 1 --global-batch-size 1 --world-size 2 --seq-length "
     "131072 "
     "--max-position-embeddings 131072 --context-parallel-size 2 --cp-comm-type a2a",
     131072, 10'254},
};

TEST(PlanTest, TimesAreWithinFivePercentOfWhatGpusTook) {
  for (const Measured& row : kMeasured) {
    const nlohmann::json plan = planned(row.flags);
    const double tokens = plan["global_batch_size"].get<double>() *
                          static_cast<double>(row.seq_length) / plan["world_size"].get<double>();
    EXPECT_NEAR(tokens / plan["seconds"].get<double>(), row.tokens_per_second,
                0.05 * row.tokens_per_second)
        << row.flags;
  }
}

// MiB that a rank's tensors took at their peak, in those runs of 131,072 tokens.
TEST(PlanTest, MemoryOfLongSequencesIsWithinFivePercentOfWhatGpusTook) {
  for (const auto& [type, mebibytes] :
       {std::pair{"p2p", 127'240.0}, std::pair{"all_gather", 128'296.0},
        std::pair{"a2a", 133'200.0}}) {
    const nlohmann::json plan =
        planned(std::string("--workload 1.3b --micro-batch-size 1 --global-batch-size 1 "
                            "--world-size 2 --seq-length 131072 --max-position-embeddings 131072 "
                            "--context-parallel-size 2 --cp-comm-type ") +
                type);
    EXPECT_NEAR(plan["stages"][0]["total_bytes"].get<double>() / (1 << 20), mebibytes,
                0.05 * mebibytes)
        << type;
  }
}

// Llama-3-405B. Each stage has a microbatch more in flight than the next one.
TEST(PlanTest, PlansRanksOfThousands) {
  const nlohmann::json plan = planned(
      "--num-layers 126 --hidden-size 16384 --ffn-hidden-size 53248 --num-attention-heads 128 "
      "--group-query-attention --num-query-groups 8 --seq-length 8192 --swiglu "
      "--disable-bias-linear --normalization RMSNorm --position-embedding-type rope "
      "--untie-embeddings-and-output-weights --vocab-size 128255 --micro-batch-size 1 "
      "--global-batch-size 2280 --world-size 16416 --tensor-model-parallel-size 8 "
      "--sequence-parallel --pipeline-model-parallel-size 9 --use-distributed-optimizer");
  EXPECT_NEAR(plan["parameters"].get<double>(), 405.9e9, 0.1e9);
  ASSERT_EQ(plan["stages"].size(), 9U);
  int64_t layers = 0;
  for (size_t i = 0; i < 9; ++i) {
    const nlohmann::json& stage = plan["stages"][i];
    layers += stage["layers"].get<int64_t>();
    EXPECT_EQ(stage["microbatches_in_flight"], 9 - static_cast<int64_t>(i));
    if (i == 0) continue;
    EXPECT_LT(stage["total_bytes"].get<int64_t>(),
              plan["stages"][i - 1]["total_bytes"].get<int64_t>());
  }
  EXPECT_EQ(layers, 126);
}

// The rates of a GPU that was not measured follow its peaks.
TEST(PlanTest, ChoosesTheRecomputationThatFits) {
  const std::string flags = "--workload 345m --micro-batch-size 32 --global-batch-size 64 --fit ";
  const auto bytes_of = [](const nlohmann::json& report) {
    return report["stages"][0]["total_bytes"].get<double>() / (1 << 30);
  };
  const nlohmann::json whole = planned(flags + "40");
  EXPECT_EQ(whole["recompute_flags"], "");
  EXPECT_EQ(whole["seconds_by_part"]["recomputation"], 0);
  const nlohmann::json fitted = planned(flags + "25.5");
  EXPECT_EQ(fitted["recompute_flags"],
            "--recompute-granularity selective --recompute-modules activation");
  EXPECT_GT(bytes_of(whole), 25.5);
  EXPECT_LE(bytes_of(fitted), 25.5);
  EXPECT_GT(fitted["seconds_by_part"]["recomputation"], 0);
  EXPECT_EQ(fitted["fit_flags"], fitted["recompute_flags"]);
  EXPECT_THAT(message_of<ConfigError>([&] { planned(flags + "3"); }),
              testing::HasSubstr("--fit 3: no recomputation lowers a rank to that many GiB; use"));
  EXPECT_THAT(message_of<ConfigError>([&] { planned(flags + "40 --recompute-activations"); }),
              testing::HasSubstr("--fit chooses the recomputation; remove"));
}

// The shapes of Qwen2.5 at sequence 1024.
constexpr const char* kQwen =
    "--group-query-attention --swiglu --normalization RMSNorm --disable-bias-linear --add-qkv-bias "
    "--position-embedding-type rope --seq-length 1024 --max-position-embeddings 1024 --vocab-size "
    "151936 --hidden-dropout 0 --attention-dropout 0 --untie-embeddings-and-output-weights "
    "--use-distributed-optimizer ";
constexpr const char* kQwen7b =
    "--num-layers 28 --hidden-size 3584 --ffn-hidden-size 18944 --num-attention-heads 28 "
    "--num-query-groups 4 ";
constexpr const char* kQwen14b =
    "--num-layers 48 --hidden-size 5120 --ffn-hidden-size 13824 --num-attention-heads 40 "
    "--num-query-groups 8 ";
constexpr const char* kNarrow =
    "--use-precision-aware-optimizer --main-grads-dtype bf16 --main-params-dtype bf16 "
    "--exp-avg-dtype bf16 --exp-avg-sq-dtype bf16 ";

// With moments in fp32, a 7B model fits 80 GB only by offload.
TEST(PlanTest, FitsLargeModelsOnOneGpu) {
  const std::string qwen = kQwen;
  const std::string narrow = kNarrow;
  const nlohmann::json offloaded =
      planned(qwen + kQwen7b + "--gpu h100 --micro-batch-size 4 --fit 74");
  EXPECT_EQ(offloaded["fit_flags"], "--optimizer-cpu-offload");
  EXPECT_EQ(planned(qwen + narrow + kQwen7b + "--micro-batch-size 4 --fit 71.7")["fit_flags"],
            "--recompute-granularity selective --recompute-modules activation");
  EXPECT_EQ(planned(qwen + narrow + kQwen14b + "--micro-batch-size 4 --fit 132")["fit_flags"],
            "--recompute-granularity selective --recompute-modules layernorm activation");
  const nlohmann::json fp8 =
      planned(qwen + narrow + kQwen7b + "--fp8-format hybrid --micro-batch-size 16 --fit 111.7");
  EXPECT_EQ(fp8["fit_flags"],
            "--no-keep-fp8-transpose-cache --recompute-granularity full --recompute-method block "
            "--recompute-num-layers 3");
}

TEST(PlanTest, KnowsTheRoofsOfOtherGpus) {
  const std::string flags = "--workload 1.3b --micro-batch-size 8 --global-batch-size 16";
  const nlohmann::json h200 = planned(flags);
  EXPECT_EQ(h200["gpu"], "H200");
  EXPECT_EQ(planned(flags + " --gpu h200")["seconds"], h200["seconds"]);
  const auto part = [&](const std::string& gpu, const char* what) {
    const nlohmann::json plan = planned(flags + " --gpu " + gpu);
    return plan["seconds_by_part"][what].get<double>() /
           h200["seconds_by_part"][what].get<double>();
  };
  EXPECT_NEAR(part("a100", "linear layers"), 989.4 / 312, 1e-6);
  EXPECT_NEAR(part("a100", "attention"), 989.4 / 312, 1e-6);
  EXPECT_NEAR(part("h100", "linear layers"), 1, 1e-6);
  EXPECT_NEAR(part("h100", "optimizer"), 4800.0 / 3350, 1e-6);
  EXPECT_NEAR(part("B200", "elementwise"), 4800.0 / 8000, 1e-6);
  const std::vector<std::string> unknown = {"--workload", "1.3b", "--gpu", "v100"};
  EXPECT_THAT(message_of<ConfigError>([&] { plan(unknown); }),
              testing::HasSubstr("--gpu v100 is not known; use one of a100, a6000, 3090, l40s, "
                                 "4090, h100, h200, b200, 5090"));
}

TEST(PlanTest, RefusesStagesThatAModelCannotHave) {
  EXPECT_THAT(message_of<ConfigError>([] {
                planned("--workload t5-large --world-size 2 --pipeline-model-parallel-size 2");
              }),
              testing::HasSubstr("--pipeline-model-parallel-split-rank 0 must be at least 1"));
}

TEST(PlanTest, DrawsTheMemoryAndJudgesIt) {
  using testing::ContainsRegex;
  using testing::HasSubstr;
  using testing::Not;
  const std::string fits = report({"--workload", "345m", "--gpu", "h100"});
  EXPECT_THAT(fits, ContainsRegex("optimizer +moments +2\\.645  ######+\n"));
  EXPECT_THAT(fits,
              ContainsRegex("\nfits: a rank needs [0-9.]+ GiB of the 78.01 GiB free on an idle "
                            "H100\n"));
  EXPECT_THAT(fits, Not(HasSubstr(" 0.000")));
  EXPECT_THAT(fits, Not(HasSubstr("pipeline bubble")));
  const std::string too_large = report({"--workload", "1.5b", "--gpu", "3090"});
  EXPECT_THAT(too_large,
              ContainsRegex("\ndoes not fit: a rank needs [0-9.]+ GiB, and 23.52 GiB are "
                            "free on an idle 3090; use "));
  EXPECT_THAT(
      report({"--workload", "tiny", "--device", "cpu"}),
      testing::AllOf(ContainsRegex("memory of a rank on the CPU, peak at [a-z ]+: MiB\n"),
                     ContainsRegex("\nfits: a rank needs [0-9.]+ MiB of the .* free here\n"),
                     Not(HasSubstr(" 0.000"))));
  const std::string ranks = report(
      {"--workload", "345m", "--gpu", "h100", "--world-size", "2", "--use-distributed-optimizer"});
  EXPECT_THAT(ranks, ContainsRegex("\na rank sends in an iteration, GiB: data parallel [0-9.]+\n"));
}

TEST(PlanTest, ANamedGpuNeedsNoDeviceFlag) {
  const nlohmann::json here = planned("--workload 124m --device auto --gpu a100");
  EXPECT_EQ(here["device"], "cuda");
  EXPECT_EQ(here["seconds"], planned("--workload 124m --gpu a100")["seconds"]);
}

TEST(PlanTest, OverlapHidesWhatTensorRanksSend) {
  const std::string flags =
      "--workload 1.3b --micro-batch-size 8 --global-batch-size 16 --world-size 2 "
      "--tensor-model-parallel-size 2 --sequence-parallel";
  const auto communication = [&](const std::string& more) {
    return planned(flags + more)["seconds_by_part"]["exposed communication"].get<double>();
  };
  EXPECT_GT(communication(""), 2 * communication(" --tp-comm-overlap"));
  EXPECT_GT(communication(" --tp-comm-overlap"), 0);  // hiding costs something
}

TEST(PlanTest, SizesAreEnough) {
  const nlohmann::json sizes =
      planned("--num-layers 12 --hidden-size 768 --num-attention-heads 12 --seq-length 256");
  // 50257 ids, padded to 50304 rows, and 256 positions.
  EXPECT_EQ(sizes["parameters"], planned("--workload 124m")["parameters"]);
  EXPECT_EQ(sizes["global_batch_size"], 1);
  EXPECT_EQ(planned("--num-layers 12 --hidden-size 768 --num-attention-heads 12 --seq-length 256 "
                    "--vocab-size 50303")["parameters"],
            sizes["parameters"]);
}

// 12 layers have 12 h^2 weights in rows of h or 4 h: 9 h rows.
TEST(PlanTest, CountsWeightsIn8Bits) {
  constexpr int64_t h = 768;
  const auto bytes = [](const std::string& more) {
    return planned("--workload 124m" + more)["inference_parameter_bytes"].get<int64_t>();
  };
  const int64_t parameters = planned("--workload 124m")["parameters"].get<int64_t>();
  EXPECT_EQ(bytes(""), 2 * parameters);
  for (const char* flag : {" --inference-weights int8", " --inference-weights fp8"}) {
    EXPECT_EQ(bytes(flag), 2 * parameters - 12 * (12 * h * h - 4 * 9 * h)) << flag;
  }
}

// Llama-3-8B: 32 layers of 8 groups of 128 channels, and the token's id.
TEST(PlanTest, CountsKeysAndValues) {
  const auto report = [](const std::string& more) {
    return planned("--workload llama3-8b --cache-tokens 1000" + more);
  };
  const auto per_token = [&](const std::string& more) {
    return report(more)["kv_cache_bytes_per_token"].get<int64_t>();
  };
  EXPECT_EQ(per_token(""), 32 * 8 * 2 * 2 * 128 + 4);
  EXPECT_EQ(per_token(" --kv-cache-dtype fp8"), 32 * 8 * 2 * (128 + 4) + 4);
  EXPECT_EQ(per_token(" --tensor-model-parallel-size 2 --world-size 2"), 32 * 4 * 2 * 2 * 128 + 4);
  EXPECT_EQ(report("")["kv_cache_bytes"], 1000 * per_token(""));
  EXPECT_FALSE(planned("--workload bert-large").contains("kv_cache_bytes_per_token"));
  EXPECT_THAT(message_of<ConfigError>([] { planned("--workload 124m --cache-tokens -1"); }),
              testing::HasSubstr("--cache-tokens -1 must be at least 0"));
}

// BERT-large as Megatron-LM trains it: its heads count, and attention has the whole square.
TEST(PlanTest, KnowsBert) {
  constexpr double h = 1024;
  constexpr double v = 30592;
  constexpr double s = 512;
  const nlohmann::json bert = planned("--workload bert-large");
  EXPECT_EQ(bert.at("parameters"), 336'297'858);
  EXPECT_EQ(bert.at("global_batch_size"), 32);
  const double tokens = 32 * s;
  EXPECT_NEAR(bert.at("flops_causal").get<double>(),
              6 * tokens * (24 * 12 * h * h + h * v + h * h + 2 * 24 * s * h), 1e9);
  const std::string sizes =
      "--num-layers 24 --hidden-size 1024 --num-attention-heads 16 --seq-length 512 "
      "--micro-batch-size 32 --vocab-size 30521 --attention-dropout 0 --hidden-dropout 0";
  EXPECT_EQ(planned("--model-type BERT --tokenizer-type NullTokenizer " + sizes), bert);
  EXPECT_NE(planned(sizes).at("parameters"), bert.at("parameters"));
}

// A folder describes its model as flags do.
TEST(PlanTest, OfAHuggingFaceFolder) {
  const nlohmann::json by_folder =
      planned("--load " + source_path("tests/golden/hf/llama-gqa") + " --seq-length 32");
  const nlohmann::json by_flags = planned(
      "--num-layers 3 --hidden-size 48 --num-attention-heads 4 --group-query-attention "
      "--num-query-groups 2 --ffn-hidden-size 104 --normalization RMSNorm --swiglu "
      "--disable-bias-linear --position-embedding-type rope --no-position-embedding "
      "--untie-embeddings-and-output-weights --seq-length 32 --vocab-size 130");
  EXPECT_EQ(by_folder["parameters"], by_flags["parameters"]);
  EXPECT_EQ(by_folder["stages"], by_flags["stages"]);
  EXPECT_THROW(planned("--workload tiny --load " + source_path("tests/golden/hf/llama")),
               ConfigError);
}

}  // namespace
}  // namespace megatron::cli

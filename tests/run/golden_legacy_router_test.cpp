// Runs of Megatron Core 0.5 with experts (../shared/golden/README-modern.md) are repeated with
// --megatron-compat 0.5, and continue from a checkpoint in another layout.
#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "megatron/comm/threads.h"
#include "tests/run/core_run.h"

namespace megatron {
namespace {

struct LegacyCase {
  const char* name;
  std::vector<std::string> flags;
  bool has_biases = false;
};
void PrintTo(const LegacyCase& c, std::ostream* out) { *out << c.name; }

const std::vector<std::string> kLegacyFlags = {"--num-layers",
                                               "2",
                                               "--hidden-size",
                                               "16",
                                               "--num-attention-heads",
                                               "4",
                                               "--kv-channels",
                                               "8",
                                               "--group-query-attention",
                                               "--num-query-groups",
                                               "2",
                                               "--ffn-hidden-size",
                                               "24",
                                               "--seq-length",
                                               "32",
                                               "--max-position-embeddings",
                                               "32",
                                               "--micro-batch-size",
                                               "2",
                                               "--global-batch-size",
                                               "8",
                                               "--attention-dropout",
                                               "0",
                                               "--hidden-dropout",
                                               "0",
                                               "--mock-data",
                                               "--tokenizer-type",
                                               "NullTokenizer",
                                               "--vocab-size",
                                               "127",
                                               "--make-vocab-size-divisible-by",
                                               "8",
                                               "--lr",
                                               "5e-3",
                                               "--lr-decay-style",
                                               "constant",
                                               "--weight-decay",
                                               "0.1",
                                               "--adam-beta2",
                                               "0.95",
                                               "--clip-grad",
                                               "1.0",
                                               "--seed",
                                               "1234",
                                               "--num-workers",
                                               "0",
                                               "--train-iters",
                                               "20",
                                               "--eval-iters",
                                               "0",
                                               "--position-embedding-type",
                                               "rope",
                                               "--untie-embeddings-and-output-weights",
                                               "--num-experts",
                                               "8",
                                               "--device",
                                               "cpu",
                                               "--num-threads",
                                               "1",
                                               "--megatron-compat",
                                               "0.5"};

class GoldenLegacyRouterTest : public testing::TestWithParam<LegacyCase> {
 protected:
  static RunConfig config_of(const LegacyCase& c, const std::vector<std::string>& more,
                             int64_t ranks) {
    std::vector<std::string> words = kLegacyFlags;
    const std::vector<std::string> activation =
        c.has_biases ? std::vector<std::string>{"--no-bias-gelu-fusion"}
                     : std::vector<std::string>{"--swiglu", "--disable-bias-linear"};
    for (const std::vector<std::string>& part : {activation, c.flags, more}) {
      words.insert(words.end(), part.begin(), part.end());
    }
    RunConfig config = parse_training_args(words, ModelKind::kGpt, ranks);
    config.transformer.padded_vocab_size = 128;
    return config;
  }

  static void expect_iteration(const IterationResult& result, const CoreRun& golden,
                               size_t number) {
    const nlohmann::json& want = golden.iterations()[number - 1];
    const double lm_loss = want["lm_loss"];
    EXPECT_NEAR(loss_of(result, "lm loss"), lm_loss, 1e-6 * lm_loss) << number;
    const double norm = want["grad_norm"];
    EXPECT_NEAR(result.grad_norm.value_or(-1), norm, 1e-6 * std::max(1.0, norm)) << number;
    // There losses of layers are added, and have their coefficients.
    constexpr double kLayers = 2;
    const auto expect_loss = [&](const char* ours, double coefficient, const char* theirs) {
      const double loss = want[theirs];
      if (loss == 0) return;
      EXPECT_NEAR(kLayers * coefficient * loss_of(result, ours), loss, 1e-7) << number;
    };
    expect_loss("load_balancing_loss", 0.01, "aux_loss_sum_over_layers_times_coeff");
    expect_loss("z_loss", 0.001, "z_loss_sum_over_layers_times_coeff");
  }
};

TEST_P(GoldenLegacyRouterTest, TrainsAndResumesAsMegatronCore) {
  MG_NEEDS_SHARED("golden/moe05/top2/run.json");
  const CoreRun golden("moe05", GetParam().name);
  const TemporaryDirectory directory;
  const std::string saved = directory.path().string();
  std::vector<IterationResult> results;
  {
    CoreTrainer whole(golden, config_of(GetParam(), {"--save", saved, "--save-interval", "10"}, 1),
                      comm::Group());
    for (int i = 0; i < 20; ++i) {
      results.push_back(whole.iterate());
      if (i == 9) whole.save();
    }
  }
  for (size_t i = 0; i < results.size(); ++i) expect_iteration(results[i], golden, i + 1);
  // Sinkhorn's iteration sees the tokens of a rank's microbatch, which are the same on two ranks.
  results.clear();
  comm::run_ranks(2, [&](const comm::Group& world) {
    CoreTrainer rest(
        golden, config_of(GetParam(), {"--load", saved, "--expert-model-parallel-size", "2"}, 2),
        world);
    for (int i = 0; i < 10; ++i) {
      const IterationResult result = rest.iterate();
      if (world.rank() == 1) results.push_back(result);
    }
  });
  for (size_t i = 0; i < results.size(); ++i) expect_iteration(results[i], golden, i + 11);
}

using Words = std::vector<std::string>;
INSTANTIATE_TEST_SUITE_P(
    Runs, GoldenLegacyRouterTest,
    testing::Values(
        LegacyCase{"top2", Words{"--moe-aux-loss-coeff", "0.01"}},
        LegacyCase{"top1", Words{"--moe-router-topk", "1", "--moe-aux-loss-coeff", "0.01"}},
        LegacyCase{"top2z", Words{"--moe-aux-loss-coeff", "0.01", "--moe-z-loss-coeff", "0.001"}},
        LegacyCase{"top4none",
                   Words{"--moe-router-topk", "4", "--moe-router-load-balancing-type", "none"}},
        LegacyCase{"sinkhorn1",
                   Words{"--moe-router-topk", "1", "--moe-router-load-balancing-type", "sinkhorn"}},
        LegacyCase{"sinkhorn2", Words{"--moe-router-load-balancing-type", "sinkhorn"}},
        LegacyCase{"gelu", Words{"--moe-aux-loss-coeff", "0.01"}, true}),
    [](const auto& info) { return std::string(info.param.name); });

}  // namespace
}  // namespace megatron

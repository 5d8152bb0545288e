#include "tests/program/program_test.h"

namespace megatron::program {
namespace {

struct RecomputeCase {
  std::string name;
  Words words;
};

void PrintTo(const RecomputeCase& c, std::ostream* out) { *out << c.name; }

class RecomputeTest : public ProgramTest, public testing::WithParamInterface<RecomputeCase> {
 protected:
  Flags random_flags() const {
    return golden_flags()
        .with("--train-iters", "6")
        .with("--lr-decay-iters", "6")
        .with("--eval-iters", "0")
        .with("--attention-dropout", "0.1")
        .with("--hidden-dropout", "0.1");
  }
  std::vector<Metrics> train_as(const std::string& name, const Flags& flags,
                                const Words& more = {}) const {
    Words words = flags.with("--save", path(name).string())
                      .with("--save-interval", "6")
                      .with("--metrics-jsonl", path(name + ".jsonl").string())
                      .words();
    words.insert(words.end(), more.begin(), more.end());
    const Outcome outcome = run("pretrain-gpt", words);
    EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
    return metrics_of(path(name + ".jsonl"));
  }
};

// Masks are replayed, so that not a bit changes.
TEST_P(RecomputeTest, ChangesNothing) {
  for (const bool is_llama : {false, true}) {
    const Flags flags = is_llama ? llama_style(random_flags()).with("--bf16") : random_flags();
    const std::string suffix = is_llama ? "-llama" : "-gpt";
    const std::vector<Metrics> want = train_as("plain" + suffix, flags);
    const std::vector<Metrics> got = train_as("recomputed" + suffix, flags, GetParam().words);
    ASSERT_EQ(want.size(), 6u);
    EXPECT_EQ(got, want);
    expect_identical(read_saved_run(iteration_in(path("recomputed" + suffix), 6)),
                     read_saved_run(iteration_in(path("plain" + suffix), 6)));
  }
}

Words full(const char* method, const char* layers) {
  return {"--recompute-granularity", "full", "--recompute-method", method,
          "--recompute-num-layers",  layers};
}

Words parts(const Words& modules) {
  Words words = {"--recompute-granularity", "selective", "--recompute-modules"};
  words.insert(words.end(), modules.begin(), modules.end());
  return words;
}

Words on_host(const char* method, const char* layers) {
  Words words = full(method, layers);
  words.emplace_back("--checkpoint-in-cpu");
  return words;
}

Words offloaded(const char* layers, Words words = {}) {
  for (const char* word :
       {"--cpu-offloading-num-layers", layers, "--min-offloaded-tensor-size", "0"}) {
    words.emplace_back(word);
  }
  return words;
}

INSTANTIATE_TEST_SUITE_P(
    Ways, RecomputeTest,
    testing::Values(RecomputeCase{"uniform_1", full("uniform", "1")},
                    RecomputeCase{"uniform_2", full("uniform", "2")},
                    RecomputeCase{"uniform_3_of_4", full("uniform", "3")},
                    RecomputeCase{"block_2", full("block", "2")},
                    RecomputeCase{"norms_and_activation", parts({"layernorm", "activation"})},
                    RecomputeCase{"norms_and_mlp", parts({"layernorm", "mlp"})},
                    RecomputeCase{"on_host", on_host("uniform", "1")},
                    RecomputeCase{"layers_on_host", offloaded("4")},
                    RecomputeCase{"layers_on_host_beside_parts",
                                  offloaded("3", parts({"layernorm", "mlp"}))},
                    RecomputeCase{"selective", {"--recompute-activations"}}),
    [](const auto& one) { return one.param.name; });

}  // namespace
}  // namespace megatron::program

#include <cmath>

#include "tests/program/exact_resume.h"
#include "tests/program/layout_runs.h"
#include "tests/support/tensors.h"

// Training with FP8 products.
namespace megatron::program {
namespace {

Flags recomputed(const Flags& flags) {
  return flags.with("--recompute-granularity", "full")
      .with("--recompute-method", "uniform")
      .with("--recompute-num-layers", "1");
}

class Fp8ResumeTest : public ExactResumeTest {};

// After one iteration, in the middle of a ring of amax, and with dropout that is replayed.
TEST_F(Fp8ResumeTest, EqualsTheRunWithoutStop) { expect_exact_resume(in_fp8(golden_flags()), 1); }
TEST_F(Fp8ResumeTest, Bf16) {
  expect_exact_resume(in_fp8(with_dropout(golden_flags())).with("--bf16"), 7);
}
TEST_F(Fp8ResumeTest, LlamaTensorwise) {
  expect_exact_resume(llama_style(golden_flags())
                          .with("--bf16")
                          .with("--fp8-format", "e4m3")
                          .with("--fp8-recipe", "tensorwise")
                          .with("--first-last-layers-bf16"),
                      10);
}

TEST_F(Fp8ResumeTest, LlamaBlockwise) {
  expect_exact_resume(in_blocks(llama_style(golden_flags())).with("--bf16"), 10);
}

class Fp8Test : public LayoutTest {
 protected:
  std::vector<Metrics> metrics(const std::string& name, const Flags& flags) {
    const Outcome outcome = train(
        flags.with("--metrics-jsonl", path(name + ".jsonl").string()).with("--eval-iters", "0"));
    EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
    return metrics_of(path(name + ".jsonl"));
  }

  // 20 iterations of one rank and of other layouts.
  void expect_alike(const Flags& flags, const std::string& name) {
    const std::vector<Metrics> want = trained(flags, {}, name);
    ASSERT_GE(want.size(), 20u);
    const Layout layouts[] = {{.tp = 2},
                              {.tp = 2, .sequence_parallel = true},
                              {.pp = 2, .layers_a_chunk = 1},
                              {.dp = 2, .distributed_optimizer = true, .overlap = true},
                              {.tp = 2, .pp = 2, .sequence_parallel = true},
                              {.cp = 2}};
    for (const Layout& layout : layouts) {
      const std::string run = name + name_of(layout);
      const std::vector<Metrics> got = trained(flags, layout, run);
      ASSERT_EQ(got.size(), want.size()) << run;
      // Roundings to three bits differ where sums do.
      for (size_t i = 0; i < want.size(); ++i) {
        const double loss = want[i].at("lm loss");
        EXPECT_NEAR(got[i].at("lm loss"), loss, 2e-3 * loss) << run << ", iteration " << i;
      }
    }
  }
};

// The losses of 20 iterations stay near those of bf16, and differ.
TEST_F(Fp8Test, TrainsLikeBf16) {
  for (const bool is_llama : {false, true}) {
    const Flags flags = (is_llama ? llama_style(golden_flags()) : golden_flags()).with("--bf16");
    const std::string style = is_llama ? "llama_" : "gpt_";
    const std::vector<Metrics> want = metrics(style + "bf16", flags);
    const auto expect_near = [&](const std::string& name, const Flags& changed) {
      const std::vector<Metrics> got = metrics(style + name, changed);
      ASSERT_EQ(got.size(), want.size());
      bool is_same = true;
      for (size_t i = 0; i < want.size(); ++i) {
        const double loss = want[i].at("lm loss");
        EXPECT_NEAR(got[i].at("lm loss"), loss, 0.02 * loss) << name << ", iteration " << i;
        is_same = is_same && got[i].at("lm loss") == loss;
      }
      EXPECT_FALSE(is_same) << name;
    };
    expect_near("delayed", in_fp8(flags));
    expect_near("latest", flags.with("--fp8-format", "hybrid"));
    expect_near("tensorwise", in_fp8(flags).with("--fp8-recipe", "tensorwise"));
    expect_near("blockwise", in_blocks(flags));
    expect_near("e4m3", flags.with("--fp8-format", "e4m3").with("--fp8-margin", "1"));
    expect_near("wide_wgrad", in_fp8(flags).with("--no-fp8-wgrad"));
  }
}

// A replayed forward pass sees the scales and leaves the amax of the first one.
TEST_F(Fp8Test, RecomputationChangesNothing) {
  const Flags flags = in_fp8(with_dropout(golden_flags())).with("--bf16");
  const auto want = metrics("plain", flags);
  EXPECT_EQ(metrics("recomputed", recomputed(flags)), want);
  const Flags selective = flags.with("--recompute-granularity", "selective");
  EXPECT_EQ(metrics("mlp", selective.with("--recompute-modules", "mlp")), want);
  EXPECT_EQ(metrics("norms", selective.with("--recompute-modules", "layernorm")), want);
}

TEST_F(Fp8Test, LayoutsTrainAlike) {
  const Flags plain = golden_flags().with("--micro-batch-size", "1").with("--eval-iters", "0");
  expect_alike(in_fp8(plain), "delayed");
  expect_alike(in_blocks(plain), "blockwise");
}

// Ranks share one scale for a layer, so that a run goes on with its scales in any layout.
TEST_F(Fp8Test, ARunGoesOnInAnotherLayoutWithItsScales) {
  const Flags flags = in_fp8(golden_flags()).with("--save-interval", "1000");
  train(flags.with("--save", path("one").string()).with("--exit-interval", "10"));
  const Flags go_on = flags.with("--load", path("one").string())
                          .with("--exit-interval", "11")
                          .with("--eval-iters", "0");
  const auto scales_after = [&](const Layout& layout) {
    const std::string name = name_of(layout);
    trained(go_on.with("--save", path(name).string()), layout, name);
    return read_saved_run(iteration_in(path(name), 11)).tensors;
  };
  const std::map<std::string, Tensor> want = scales_after({});
  const std::map<std::string, Tensor> got =
      scales_after({.tp = 2, .dp = 2, .sequence_parallel = true, .distributed_optimizer = true});
  int count = 0;
  for (const auto& [name, tensor] : want) {
    if (name.find(".fp8.") == std::string::npos) continue;
    ++count;
    // A difference in the last bit of a sum may change an amax by one rounding in FP8.
    expect_close(got.at(name), tensor, {0.05, 0}, name);
  }
  EXPECT_EQ(count, 4 * 4 * 2) << "scales and history of four linear layers in four layers";
}

// Inference and conversion of an FP8 training's checkpoint compute in the model's dtype, in each
// format.
TEST_F(Fp8Test, AnyFormatHoldsTheModel) {
  const Flags flags =
      in_fp8(golden_flags()).with("--bf16").with("--train-iters", "2").with("--save-interval", "2");
  train(flags.with("--save", path("native").string()));
  train(flags.with("--save", path("hf").string()).with("--save-format", "hf"));
  const auto converted = [&](const std::string& saver) {
    const Outcome outcome =
        run("convert-checkpoint", {"--load-dir", path("native").string(), "--save-dir",
                                   path(saver).string(), "--saver", saver});
    EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
    return path(saver);
  };
  const auto scores = [&](const std::filesystem::path& model) {
    const Outcome outcome = run("score", {"--load", model.string(), "--device", "cpu"},
                                {.input = R"({"ids": [5, 17, 99, 3, 8]})"});
    EXPECT_EQ(outcome.exit_code, 0) << model << outcome.err;
    return outcome.out;
  };
  const std::string want = scores(path("native"));
  EXPECT_EQ(scores(iteration_in(path("hf"), 2)), want);
  EXPECT_EQ(scores(converted("megatron")), want);
  EXPECT_EQ(scores(converted("core")), want);
}

Flags gathered(const Flags& flags) { return flags.with("--fp8-param-gather"); }

// Products transpose the one copy of a weight to what they read otherwise.
TEST_F(Fp8Test, OneCopyOfWeightsChangesNoBit) {
  const Flags gpt = golden_flags().with("--micro-batch-size", "1").with("--eval-iters", "0");
  const Flags delayed = in_fp8(gpt.with("--bf16"));
  const Flags tensorwise =
      in_fp8(llama_style(gpt).with("--bf16")).with("--fp8-recipe", "tensorwise");
  const Flags blockwise =
      in_blocks(llama_style(gpt).with("--bf16")).with("--ffn-hidden-size", "288");
  const Layout two{.dp = 2, .distributed_optimizer = true};
  for (const auto& [flags, name] : {std::pair(delayed, "delayed"), std::pair(tensorwise, "tensor"),
                                    std::pair(blockwise, "blocks")}) {
    const std::vector<Metrics> want = trained(flags, two, name);
    const Flags once = flags.with("--no-keep-fp8-transpose-cache");
    expect_same_bits(trained(once, two, std::string(name) + "_once"), want, name);
    expect_same_bits(trained(gathered(once), two, std::string(name) + "_gathered"), want, name);
  }
}

// Weights that ranks gather in FP8 are those that they round after gathering them in the model's
// dtype: every number of a run has the same bits, and so has its checkpoint.
TEST_F(Fp8Test, GatheringParametersInFp8ChangesNoBit) {
  const Flags gpt = golden_flags()
                        .with("--micro-batch-size", "1")
                        .with("--save-interval", "1000")
                        .with("--eval-interval", "8")
                        .with("--eval-iters", "2");
  const Flags llama = llama_style(gpt).with("--bf16");
  const Flags delayed = in_fp8(gpt.with("--bf16"));
  const Flags tensorwise = in_fp8(llama).with("--fp8-recipe", "tensorwise");
  const Layout two{.dp = 2, .distributed_optimizer = true};
  const Layout overlapped{.dp = 2, .distributed_optimizer = true, .overlap = true};
  const struct {
    Flags flags;
    Layout layout;
    const char* name;
  } runs[] = {
      {delayed, two, "delayed"},
      {delayed.with("--overlap-param-gather"), overlapped, "overlapped"},
      {delayed, {.dp = 4, .distributed_optimizer = true, .instances = 2}, "instances"},
      {in_fp8(gpt), two, "fp32"},
      {tensorwise.with("--first-last-layers-bf16"), two, "tensorwise"},
      {delayed, {.tp = 2, .dp = 2, .sequence_parallel = true, .zero_stage = 2}, "stage2"},
      {tensorwise.with("--overlap-param-gather"),
       {.tp = 2, .pp = 2, .dp = 2, .distributed_optimizer = true, .overlap = true},
       "pipeline"},
      {delayed.with("--no-fp8-wgrad").with("--log-params-norm"),
       {.distributed_optimizer = true, .cp = 2},
       "context"},
      {recomputed(delayed).with("--optimizer-cpu-offload"), two, "offload"},
      {delayed.with("--optimizer", "muon"), two, "muon"},
      {in_blocks(llama).with("--ffn-hidden-size", "288").with("--overlap-param-gather"), overlapped,
       "blockwise"},
  };
  for (const auto& [flags, layout, name] : runs) {
    const auto run = [&](const Flags& plain, const Layout& in, const std::string& as) {
      return trained(plain.with("--save", path(as).string()), in, as);
    };
    const std::string wide = std::string(name) + "_wide";
    const std::vector<Metrics> want = run(flags, layout, wide);
    ASSERT_GE(want.size(), 20u) << name;
    expect_same_bits(run(gathered(flags), layout, name), want, name);
    SCOPED_TRACE(name);
    expect_identical(read_saved_run(iteration_in(path(name), 20)),
                     read_saved_run(iteration_in(path(wide), 20)));
  }
}

// A run stops and goes on with the same bits, and from there in other layouts, with the flag and
// without.
TEST_F(Fp8Test, ARunThatGathersParametersInFp8GoesOn) {
  const Flags flags =
      gathered(in_fp8(with_dropout(golden_flags()).with("--bf16")).with("--eval-iters", "0"));
  const Layout two{.dp = 2, .distributed_optimizer = true, .overlap = true};
  const std::vector<Metrics> straight = trained(flags, two, "straight");
  ASSERT_EQ(straight.size(), 20u);
  const std::string saved = path("saved").string();
  const Flags stopping =
      flags.with("--save", saved).with("--save-interval", "1000").with("--exit-interval", "7");
  std::vector<Metrics> resumed = trained(stopping, two, "begun");
  const std::vector<Metrics> rest = trained(flags.with("--load", saved), two, "rest");
  resumed.insert(resumed.end(), rest.begin(), rest.end());
  EXPECT_EQ(resumed, straight);

  const auto expect_near = [&](const Flags& other, const Layout& layout, const std::string& name) {
    const std::vector<Metrics> got = trained(other.with("--load", saved), layout, name);
    ASSERT_EQ(got.size(), rest.size()) << name;
    for (size_t i = 0; i < rest.size(); ++i) {
      const double loss = rest[i].at("lm loss");
      EXPECT_NEAR(got[i].at("lm loss"), loss, 2e-3 * loss) << name << ", iteration " << i;
    }
  };
  const Flags wide = in_fp8(with_dropout(golden_flags()).with("--bf16")).with("--eval-iters", "0");
  expect_near(wide, {}, "one");
  expect_near(flags, {.tp = 2, .dp = 2, .zero_stage = 2}, "stage2");
}

// Scales are no weights: a run without FP8 ignores them, and one with FP8 starts without them.
TEST_F(Fp8Test, RunsWithAndWithoutFp8GoOnFromEachOther) {
  const Flags plain = golden_flags().with("--bf16").with("--eval-iters", "0");
  const Flags fp8 = in_fp8(plain);
  const auto begin = [&](const Flags& flags, const char* name) {
    train(flags.with("--save", path(name).string())
              .with("--save-interval", "1000")
              .with("--exit-interval", "5"));
  };
  begin(plain, "plain");
  begin(fp8, "fp8");
  const auto go_on = [&](const std::string& name, const Flags& flags, const char* from) {
    const std::vector<Metrics> got = metrics(name, flags.with("--load", path(from).string()));
    ASSERT_EQ(got.size(), 15u);
    EXPECT_TRUE(std::isfinite(got.back().at("lm loss")));
  };
  go_on("fp8_from_plain", fp8, "plain");
  go_on("plain_from_fp8", plain, "fp8");
  go_on("other_history", fp8.with("--fp8-amax-history-len", "2"), "fp8");
}

}  // namespace
}  // namespace megatron::program

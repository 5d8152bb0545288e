#include "tests/program/exact_resume.h"

// pretrain-prefix-lm: a GPT whose prefixes are read in both directions.
namespace megatron::program {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

class PrefixLmTest : public ExactResumeTest {
 protected:
  Flags flags() const {
    return golden_flags().with("--train-iters", "4").with("--eval-interval", "2");
  }

  // The metrics of a run of a command, on `ranks` ranks.
  std::vector<Metrics> metrics(const Flags& run, const std::string& command = "pretrain-prefix-lm",
                               const std::string& ranks = "1") const {
    std::filesystem::remove(path("m.jsonl"));
    Words words = run.with("--metrics-jsonl", path("m.jsonl").string()).words();
    words.insert(words.begin(), {"--nproc-per-node", ranks, command});
    const Outcome outcome = program::run("launch", words);
    EXPECT_EQ(outcome.exit_code, 0) << outcome.err << outcome.out;
    return metrics_of(path("m.jsonl"));
  }

  static Flags all_options(const Flags& flags) {
    return flags.with("--prefix-lm")
        .with("--reset-attention-mask")
        .with("--eod-mask-loss")
        .with("--loss-on-targets-only")
        .with("--reweight-loss-based-on-position-frequency");
  }
};

void prefix_lm_expect_near(const std::vector<Metrics>& got, const std::vector<Metrics>& want) {
  ASSERT_EQ(got.size(), want.size());
  for (size_t i = 0; i < want.size(); ++i) {
    for (const char* name : {"lm loss", "grad_norm", "lm loss validation"}) {
      if (!want[i].contains(name)) continue;
      EXPECT_NEAR(got[i].at(name), want[i].at(name), 1e-5 * want[i].at(name)) << name;
    }
  }
}

TEST_F(PrefixLmTest, TheCommandAndItsScriptSetTheFlag) {
  const std::vector<Metrics> prefixes = metrics(flags());
  EXPECT_EQ(metrics(flags().with("--prefix-lm"), "pretrain-gpt"), prefixes);
  EXPECT_EQ(metrics(flags(), "pretrain_prefix_lm.py"), prefixes);
  const std::vector<Metrics> causal = metrics(flags(), "pretrain-gpt");
  ASSERT_EQ(causal.size(), prefixes.size());
  for (size_t i = 0; i < causal.size(); ++i) EXPECT_NE(prefixes[i], causal[i]);
}

TEST_F(PrefixLmTest, ResumeIsExact) { expect_exact_resume(all_options(golden_flags()), 7); }

TEST_F(PrefixLmTest, RecomputationReadsTheSamePrefixes) {
  const Flags run = all_options(flags());
  EXPECT_EQ(metrics(run.with("--recompute-granularity", "full")
                        .with("--recompute-method", "uniform")
                        .with("--recompute-num-layers", "1")),
            metrics(run));
}

TEST_F(PrefixLmTest, LayoutsChangeRoundingOnly) {
  const Flags run = all_options(flags());
  const std::vector<Metrics> want = metrics(run);
  prefix_lm_expect_near(metrics(run.with("--micro-batch-size", "4")), want);
  prefix_lm_expect_near(
      metrics(run.with("--tensor-model-parallel-size", "2").with("--sequence-parallel"),
              "pretrain-prefix-lm", "2"),
      want);
  prefix_lm_expect_near(
      metrics(run.with("--pipeline-model-parallel-size", "2"), "pretrain-prefix-lm", "2"), want);
  prefix_lm_expect_near(metrics(run, "pretrain-prefix-lm", "2"), want);
}

TEST_F(PrefixLmTest, FlagsThatDoNotFitAreNamed) {
  Words words = flags().with("--context-parallel-size", "2").words();
  words.insert(words.begin(), {"--nproc-per-node", "2", "pretrain-prefix-lm"});
  EXPECT_THAT(errors_of(run("launch", words)),
              ElementsAre(HasSubstr("--prefix-lm and --context-parallel-size above 1 exclude")));
  EXPECT_THAT(train(flags().with("--train-iters", "1").with("--loss-on-targets-only")).err,
              HasSubstr("have no effect without --prefix-lm"));
}

}  // namespace
}  // namespace megatron::program

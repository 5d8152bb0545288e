#include <signal.h>

#include <stdexcept>

#include "megatron/core/file.h"
#include "tests/program/program_test.h"

// Effects of single flags of pretrain-gpt.
namespace megatron::program {
namespace {

using testing::HasSubstr;
using testing::Not;

class FlagsTest : public ProgramTest {
 protected:
  // Four iterations, no evaluation.
  Flags short_flags() const {
    return golden_flags()
        .with("--train-iters", "4")
        .with("--eval-iters", "0")
        .with("--lr-warmup-iters", "0");
  }
  static std::vector<std::string> field(const Outcome& outcome, const std::string& name) {
    std::vector<std::string> values;
    for (const IterationText& line : iterations_of(outcome.out)) values.push_back(line.text(name));
    if (values.empty()) throw std::runtime_error("the run printed no iteration");
    return values;
  }
};

TEST_F(FlagsTest, SigtermSavesAndEnds) {
  const Flags flags = golden_flags()
                          .with("--train-iters", "100000")
                          .with("--eval-iters", "0")
                          .with("--save", path("save").string())
                          .with("--save-interval", "100000");
  Running running("pretrain-gpt", flags.with("--exit-signal-handler").words());
  ASSERT_TRUE(running.wait_for(" iteration        3/"));
  running.send(SIGTERM);
  const Outcome outcome = running.finish();
  EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
  EXPECT_THAT(outcome.out, HasSubstr("exiting program after receiving SIGTERM."));
  const std::string last = std::to_string(iterations_of(outcome.out).size());
  EXPECT_EQ(read_text(path("save") / "latest_checkpointed_iteration.txt"), last);

  const Outcome resumed =
      train(flags.with("--load", path("save").string()).with("--exit-interval", "1"));
  EXPECT_THAT(resumed.out, HasSubstr(" at iteration " + last));
  EXPECT_EQ(iterations_of(resumed.out).size(), 1u);
}

TEST_F(FlagsTest, SigtermWithoutHandlerEndsAtOnce) {
  Running running("pretrain-gpt", golden_flags().with("--train-iters", "100000").words());
  ASSERT_TRUE(running.wait_for(" iteration        1/"));
  running.send(SIGTERM);
  EXPECT_EQ(running.finish().exit_code, 128 + SIGTERM);
}

TEST_F(FlagsTest, SkipTrainOnlyEvaluates) {
  train(golden_flags()
            .with("--save", path("save").string())
            .with("--save-interval", "20")
            .with("--metrics-jsonl", path("metrics.jsonl").string()));
  const Outcome outcome =
      train(golden_flags().with("--load", path("save").string()).with("--skip-train"));
  EXPECT_EQ(iterations_of(outcome.out).size(), 0u);
  const std::map<std::string, double> losses = validations_of(outcome.out);
  EXPECT_EQ(losses.count("iteration 20 on validation set"), 1u);
  // The test data begin at their first sample in both runs.
  EXPECT_NEAR(losses.at("iteration 20 on test set"),
              metrics_of(path("metrics.jsonl")).back().at("lm loss validation"), 1e-5);
}

TEST_F(FlagsTest, EvaluatesAtItsInterval) {
  const std::map<std::string, double> losses =
      validations_of(train(golden_flags().with("--eval-interval", "6")).out);
  std::vector<std::string> names;
  for (const auto& [name, loss] : losses) names.push_back(name);
  EXPECT_THAT(names, testing::UnorderedElementsAre("iteration 6", "iteration 12", "iteration 18",
                                                   "iteration 20 on validation set",
                                                   "iteration 20 on test set"));
}

TEST_F(FlagsTest, LogIntervalPrintsMeans) {
  const Outcome each = train(golden_flags());
  const Outcome fifth = train(golden_flags().with("--log-interval", "5"));
  const std::vector<IterationText> lines = iterations_of(fifth.out);
  ASSERT_EQ(lines.size(), 4u);
  double sum = 0;
  for (int i = 0; i < 5; ++i) {
    sum += iterations_of(each.out)[static_cast<size_t>(i)].number("lm loss");
  }
  EXPECT_NEAR(lines.front().number("lm loss"), sum / 5, 2e-6);
}

TEST_F(FlagsTest, IterationsToSkipAreReadButNotTrainedOn) {
  const Outcome all = train(short_flags());
  const Outcome some = train(short_flags().with("--iterations-to-skip", "2", "3"));
  EXPECT_EQ(field(some, "number of skipped iterations"), (Words{"0", "1", "1", "0"}));
  EXPECT_EQ(field(some, "consumed samples"), field(all, "consumed samples"));
  EXPECT_EQ(iterations_of(some.out)[0].line, iterations_of(all.out)[0].line);
  EXPECT_FALSE(iterations_of(some.out)[1].has("lm loss"));
  // The schedule stood still.
  EXPECT_EQ(field(some, "learning rate")[2], field(all, "learning rate")[0]);
  EXPECT_EQ(field(some, "learning rate")[3], field(all, "learning rate")[1]);
}

TEST_F(FlagsTest, OptionalFieldsOfTheLine) {
  const Outcome plain = train(short_flags());
  EXPECT_THAT(plain.out, Not(HasSubstr("throughput per GPU")));
  const Outcome full = train(short_flags()
                                 .with("--log-throughput")
                                 .with("--log-params-norm")
                                 .with("--log-num-zeros-in-grad"));
  EXPECT_THAT(full.out, HasSubstr(" throughput per GPU (TFLOP/s/GPU): "));
  const IterationText line = iterations_of(full.out).front();
  EXPECT_GT(line.number("params norm"), 1.0);
  // Rows of the embedding whose token is not in the batch get a gradient from the tied output
  // layer; those of the padding beyond the vocabulary do too. Few are exactly 0.
  EXPECT_GE(line.number("num zeros"), 0.0);
  EXPECT_EQ(line.text("lm loss"), iterations_of(plain.out).front().text("lm loss"));
  const Outcome unclipped = train(short_flags().with("--clip-grad", "0"));
  EXPECT_FALSE(iterations_of(unclipped.out).front().has("grad norm"));
}

TEST_F(FlagsTest, TimersOfTheirLevel) {
  EXPECT_THAT(train(short_flags()).out, Not(HasSubstr("forward-backward")));
  const std::string one = train(short_flags().with("--timing-log-level", "1")).out;
  EXPECT_THAT(one, HasSubstr("    forward-backward ......"));
  EXPECT_THAT(one, HasSubstr("    optimizer ......"));
  EXPECT_THAT(one, Not(HasSubstr("backward-compute")));
  EXPECT_THAT(train(short_flags().with("--timing-log-level", "2")).out,
              HasSubstr("    backward-compute ......"));
}

TEST_F(FlagsTest, TensorBoardAndMetricsFilesHoldTheRun) {
  const Outcome outcome = train(golden_flags()
                                    .with("--tensorboard-dir", path("tb/deeper").string())
                                    .with("--log-validation-ppl-to-tensorboard")
                                    .with("--metrics-jsonl", path("m.jsonl").string()));
  std::string events;
  for (const auto& entry : std::filesystem::directory_iterator(path("tb/deeper"))) {
    EXPECT_THAT(entry.path().filename().string(), HasSubstr("events.out.tfevents."));
    events += read_text(entry.path());
  }
  for (const char* tag : {"lm loss", "lm loss vs samples", "learning-rate", "grad-norm",
                          "loss-scale", "lm loss validation", "lm loss validation ppl"}) {
    EXPECT_THAT(events, HasSubstr(tag));
  }
  const std::vector<Metrics> rows = metrics_of(path("m.jsonl"));
  ASSERT_EQ(rows.size(), 23u);  // 20 iterations and 3 evaluations
  const std::vector<IterationText> lines = iterations_of(outcome.out);
  for (size_t i = 0; i < 10; ++i) {
    EXPECT_EQ(rows[i].at("iteration"), static_cast<double>(i + 1));
    EXPECT_NEAR(rows[i].at("lm loss"), lines[i].number("lm loss"), 1e-6);
    EXPECT_NEAR(rows[i].at("grad_norm"), lines[i].number("grad norm"), 1e-3);
  }
}

// The documents of the corpus end within many samples, so each of these changes the loss.
TEST_F(FlagsTest, EndsOfDocumentsCount) {
  const std::string plain = field(train(short_flags()), "lm loss").front();
  for (const char* flag : {"--reset-position-ids", "--reset-attention-mask", "--eod-mask-loss"}) {
    EXPECT_NE(field(train(short_flags().with(flag)), "lm loss").front(), plain) << flag;
  }
  for (const Flags& flags : {short_flags(), llama_style(short_flags()),
                             short_flags().with("--position-embedding-type", "alibi")}) {
    train(
        flags.with("--reset-position-ids").with("--reset-attention-mask").with("--eod-mask-loss"));
  }
}

// Each of these changes the results.
TEST_F(FlagsTest, ArchitectureFlagsChangeTheLoss) {
  const std::string plain = field(train(short_flags()), "lm loss").back();
  const Flags variants[] = {
      short_flags().with("--position-embedding-type", "rope"),
      short_flags().with("--position-embedding-type", "rope").with("--rotary-percent", "0.5"),
      short_flags().with("--position-embedding-type", "rope").with("--rotary-interleaved"),
      short_flags()
          .with("--position-embedding-type", "rope")
          .with("--rotary-seq-len-interpolation-factor", "2"),
      short_flags().with("--position-embedding-type", "alibi"),
      short_flags().with("--position-embedding-type", "none"),
      short_flags().with("--normalization", "RMSNorm"),
      short_flags().with("--swiglu"),
      short_flags().with("--squared-relu"),
      short_flags().with("--disable-bias-linear"),
      short_flags().with("--untie-embeddings-and-output-weights"),
      short_flags().with("--apply-residual-connection-post-layernorm"),
      short_flags().with("--group-query-attention").with("--num-query-groups", "1"),
      short_flags().with("--kv-channels", "16"),
      short_flags().with("--ffn-hidden-size", "48"),
      short_flags().with("--init-method-xavier-uniform"),
      short_flags().with("--init-method-std", "0.05"),
      short_flags().with("--hidden-dropout", "0.2"),
      short_flags().with("--attention-dropout", "0.2"),
      short_flags().with("--weight-decay", "1.0"),
      short_flags().with("--adam-beta1", "0.5"),
      short_flags().with("--clip-grad", "0.1"),
      short_flags().with("--bf16").with("--fp32-residual-connection"),
  };
  std::map<std::string, Words> seen = {{plain, {}}};
  for (const Flags& flags : variants) {
    const Outcome outcome = train(flags);
    const auto [known, is_new] = seen.emplace(field(outcome, "lm loss").back(), flags.words());
    EXPECT_TRUE(is_new) << testing::PrintToString(flags.words()) << "\nis the same as\n"
                        << testing::PrintToString(known->second);
  }
}

// Kernel choices of Megatron-LM that may not change a number here.
TEST_F(FlagsTest, FlagsWithoutNumericMeaningChangeNothing) {
  const std::vector<IterationText> plain = iterations_of(train(short_flags()).out);
  const Flags other = short_flags()
                          .with("--no-masked-softmax-fusion")
                          .with("--no-bias-dropout-fusion")
                          .with("--no-persist-layer-norm")
                          .with("--no-gradient-accumulation-fusion")
                          .with("--use-flash-attn")
                          .with("--use-mcore-models")
                          .with("--distributed-backend", "nccl");
  const std::vector<IterationText> got = iterations_of(train(other).out);
  ASSERT_EQ(got.size(), plain.size());
  for (size_t i = 0; i < got.size(); ++i) EXPECT_EQ(got[i].line, plain[i].line);
}

TEST_F(FlagsTest, MockDataNeedNoFiles) {
  const Outcome outcome = train(short_flags().without("--data-path").with("--mock-data"));
  EXPECT_EQ(iterations_of(outcome.out).size(), 4u);
}

TEST_F(FlagsTest, HelpNamesTheFlags) {
  for (const char* command : {"pretrain-gpt", "generate", "score"}) {
    const Outcome outcome = run(command, {"--help"});
    EXPECT_EQ(outcome.exit_code, 0);
    EXPECT_THAT(outcome.out, HasSubstr("--load"));
  }
}

}  // namespace
}  // namespace megatron::program

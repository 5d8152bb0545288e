#include <string>

#include "tests/program/layout_runs.h"
#include "tests/support/shared_data.h"

// T5s of Megatron-LM: evaluated and trained on.
namespace megatron::program {
namespace {

using testing::HasSubstr;

class T5InterchangeTest : public LayoutTest {
 protected:
  static std::filesystem::path megatron_run() { return shared_data("golden/megatron/t5/ckpt"); }

  // The run that Megatron-LM logged, without the architecture.
  Flags golden_t5() const {
    Flags flags = golden_flags()
                      .without("--merge-file")
                      .with("--tokenizer-type", "BertWordPieceLowerCase")
                      .with("--vocab-extra-ids", "100")
                      .with("--decoder-seq-length", "16")
                      .with("--vocab-file", golden("megatron/data/bert-vocab.txt").string())
                      .with("--data-path", golden("megatron/data/sentences_text_sentence").string())
                      .with("--micro-batch-size", "2")
                      .with("--use-checkpoint-args");
    for (const char* flag : {"--num-layers", "--hidden-size", "--num-attention-heads"}) {
      flags = flags.without(flag);
    }
    return flags;
  }

  static Outcome on_ranks(int ranks, const Flags& flags) {
    Words words = {"--nproc-per-node", std::to_string(ranks), "pretrain-t5"};
    for (const std::string& word : flags.words()) words.push_back(word);
    Outcome outcome = run("launch", words);
    EXPECT_EQ(outcome.exit_code, 0) << outcome.err << outcome.out;
    return outcome;
  }

  void expect_its_losses(const std::filesystem::path& load, int ranks) const;

  std::filesystem::path converted(const std::filesystem::path& from, const char* name,
                                  const Words& more) const {
    Words words = {"--model-type", "T5",         "--load-dir",
                   from.string(),  "--save-dir", path(name).string()};
    words.insert(words.end(), more.begin(), more.end());
    const Outcome outcome = run("convert-checkpoint", words);
    EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
    EXPECT_THAT(outcome.out, HasSubstr("every tensor was read again and is the same"));
    return path(name);
  }
};

// "lm loss" of a line that an evaluation prints, as text.
std::string t5_interchange_evaluation(const std::string& output, const std::string& set) {
  const size_t line = output.find(" validation loss at iteration 20 on " + set + " set |");
  const std::string name = "lm loss value: ";
  const size_t at = output.find(name, line) + name.size();
  return output.substr(at, output.find(' ', at) - at);
}

// Megatron-LM printed 5.486270E+00 and 5.493779E+00 once it had trained the model of its
// checkpoint. Its T5 passes the mask of cross-attention in the place of another argument: the
// decoder attends to the encoder's padding, whose queries attend to all tokens alike. With the
// same mistake this program prints its losses; without it they differ in the fifth digit.
void T5InterchangeTest::expect_its_losses(const std::filesystem::path& load, int ranks) const {
  Flags flags = golden_t5().with("--skip-train").with("--load", load.string());
  if (ranks == 4) {
    flags = flags.with("--tensor-model-parallel-size", "2")
                .with("--pipeline-model-parallel-size", "2")
                .with("--pipeline-model-parallel-split-rank", "1");
  }
  const std::string out = on_ranks(ranks, flags).out;
  EXPECT_EQ(t5_interchange_evaluation(out, "validation"), "5.486381E+00")
      << load << " on " << ranks << " ranks";
  EXPECT_EQ(t5_interchange_evaluation(out, "test"), "5.493721E+00")
      << load << " on " << ranks << " ranks";
}

TEST_F(T5InterchangeTest, EvaluatesAsMegatronDid) {
  MG_NEEDS_SHARED("golden/megatron/t5/ckpt");
  expect_its_losses(megatron_run(), 1);
  expect_its_losses(megatron_run(), 4);
}

TEST_F(T5InterchangeTest, ConversionsKeepTheModel) {
  MG_NEEDS_SHARED("golden/megatron/t5/ckpt");
  converted(megatron_run(), "legacy", {"--target-tensor-parallel-size", "2"});
  expect_its_losses(path("legacy"), 1);
  converted(path("legacy"), "native", {"--saver", "native"});
  expect_its_losses(path("native"), 4);
}

TEST_F(T5InterchangeTest, IsWrittenForStagesAndWithTheNewerNames) {
  MG_NEEDS_SHARED("golden/megatron/t5/ckpt");
  converted(megatron_run(), "stages",
            {"--target-tensor-parallel-size", "2", "--target-pipeline-parallel-size", "2"});
  EXPECT_TRUE(std::filesystem::exists(path("stages/iter_0000020/mp_rank_01_001")));
  expect_its_losses(path("stages"), 1);
  for (const std::string saver : {"core", "core-te"}) {
    converted(path("stages"), saver.c_str(),
              {"--saver", saver, "--target-tensor-parallel-size", "1",
               "--target-pipeline-parallel-size", "1"});
    expect_its_losses(path(saver), 1);
  }
  const Outcome refused =
      run("convert-checkpoint",
          {"--load-dir", megatron_run().string(), "--save-dir", path("no").string(), "--saver",
           "core", "--target-pipeline-parallel-size", "2"});
  EXPECT_EQ(refused.exit_code, 2);
  EXPECT_THAT(refused.err, HasSubstr("Megatron Core's T5 has one pipeline stage, not 2"));
}

// The optimizer's state of every parameter is read: five more iterations are the same in another
// layout.
TEST_F(T5InterchangeTest, TrainsOnInEveryLayout) {
  MG_NEEDS_SHARED("golden/megatron/t5/ckpt");
  const Flags flags = golden_t5()
                          .with("--load", megatron_run().string())
                          .with("--train-iters", "25")
                          .with("--lr-decay-iters", "25")
                          .with("--override-opt_param-scheduler");
  const std::vector<Metrics> want = trained(flags, {}, "one", "pretrain-t5");
  ASSERT_GE(want.size(), 5u);
  const Flags split = flags.with("--pipeline-model-parallel-split-rank", "1");
  expect_equal(trained(split, {.tp = 2, .pp = 2}, "four", "pretrain-t5"), want, "four");
  converted(megatron_run(), "stages", {"--target-pipeline-parallel-size", "2"});
  converted(path("stages"), "core", {"--saver", "core", "--target-pipeline-parallel-size", "1"});
  for (const char* written : {"stages", "core"}) {
    const Flags again = flags.with("--load", path(written).string());
    expect_equal(trained(again, {}, std::string("from-") + written, "pretrain-t5"), want, written);
  }
}

}  // namespace
}  // namespace megatron::program

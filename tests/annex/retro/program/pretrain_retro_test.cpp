#include <filesystem>

#include "megatron/core/file.h"
#include "tests/program/exact_resume.h"
#include "tests/program/layout_runs.h"

// `megatron pretrain-retro` with synthetic neighbours.
namespace megatron::program {
namespace {

using testing::HasSubstr;

const std::string kCommand = "pretrain-retro";

// 20 iterations of a small model with every dropout: chunks of 2, 6, 6, 6, 6 and 6 tokens, whose
// neighbours the last two of three layers read.
Flags retro(const Flags& golden) {
  return golden.without("--data-path")
      .without("--split")
      .with("--mock-data")
      .with("--num-layers", "3")
      .with("--attention-dropout", "0.1")
      .with("--hidden-dropout", "0.1")
      .with("--retro-add-retriever")
      .with("--retro-layer-numbers", "2", "3")
      .with("--retro-gpt-chunk-length", "6");
}

class PretrainRetroTest : public LayoutTest {
 protected:
  Flags flags() const { return retro(golden_flags()); }
  std::vector<Metrics> trained_retro(const Flags& run, const Layout& layout = {},
                                     const std::string& name = "one") {
    return trained(run, layout, name, kCommand);
  }
};

TEST_F(PretrainRetroTest, LayoutsAndMicroBatchesTrainAsOneRank) {
  const std::vector<Metrics> want = trained_retro(flags());
  ASSERT_GE(want.size(), 20u);
  EXPECT_LT(want[19].at("lm loss"), want.front().at("lm loss") - 0.5);
  const Layout layouts[] = {
      {.tp = 2}, {.dp = 2}, {.tp = 2, .dp = 2, .distributed_optimizer = true, .overlap = true}};
  for (const Layout& layout : layouts) {
    expect_equal(trained_retro(flags(), layout, name_of(layout)), want, name_of(layout));
  }
  expect_equal(trained_retro(flags().with("--micro-batch-size", "4"), {}, "four"), want, "four");
}

TEST_F(PretrainRetroTest, WithoutARetrieverIsTheGpt) {
  const Flags gpt = flags().without("--retro-add-retriever").without("--retro-layer-numbers");
  const std::vector<Metrics> want = trained(gpt, {}, "gpt", "pretrain-gpt");
  expect_equal(trained_retro(gpt, {}, "baseline"), want, "baseline");
  EXPECT_NE(trained_retro(flags(), {}, "retro")[1].at("lm loss"), want[1].at("lm loss"));
}

// The encoder and cross-attention get no gradient, but have weights.
TEST_F(PretrainRetroTest, AClosedGateTrainsTheGpt) {
  const Flags open = flags().with("--weight-decay", "0").with("--clip-grad", "0");
  const Flags gpt = open.without("--retro-add-retriever").without("--retro-layer-numbers");
  const std::vector<Metrics> want = trained(gpt, {}, "gpt", "pretrain-gpt");
  const std::vector<Metrics> got =
      trained_retro(open.with("--retro-attention-gate", "0"), {}, "closed");
  ASSERT_EQ(got.size(), want.size());
  for (size_t i = 0; i < want.size(); ++i) {
    if (!want[i].contains("lm loss")) continue;  // an evaluation
    EXPECT_EQ(got[i].at("lm loss"), want[i].at("lm loss")) << i;
  }
}

TEST_F(PretrainRetroTest, BeginsWithTheWeightsOfAGpt) {
  const std::string save = path("gpt").string();
  const Flags short_run = flags().with("--train-iters", "2");
  const Flags gpt = short_run.without("--retro-add-retriever").without("--retro-layer-numbers");
  trained(gpt.with("--save", save).with("--save-interval", "2"), {}, "gpt", "pretrain-gpt");
  const Flags fit = short_run.with("--load", save).with("--finetune").with("--no-load-optim");
  const Outcome outcome = run(kCommand, fit.words());
  EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
  // Cross-attention of two layers with norms, and an encoder of two layers.
  EXPECT_THAT(outcome.out, HasSubstr(" > 48 tensors of Retro that the checkpoint has not"));
  EXPECT_THAT(outcome.out,
              HasSubstr("     decoder.layers.2.cross_attention.attn.linear_kv.bias\n"));
  EXPECT_THAT(outcome.out,
              HasSubstr("     decoder.layers.1.cross_attention.encoder.layers.0.pre_cross_attn_"));
  const Outcome copied = run(kCommand, fit.with("--retro-fit-copy-mlp-norm").words());
  EXPECT_THAT(copied.out, HasSubstr(" > 44 tensors of Retro that the checkpoint has not"));
  EXPECT_THAT(copied.out, HasSubstr(" > 4 tensors begin as those of the norm before the MLP:\n"
                                    "     decoder.layers.1.pre_cross_attn_layernorm.bias\n"));
  // What a GPT has must be there, too.
  const Outcome deeper =
      run(kCommand, fit.with("--num-layers", "4").with("--retro-layer-numbers", "2", "3").words());
  EXPECT_NE(deeper.exit_code, 0);
  EXPECT_THAT(deeper.err, HasSubstr("missing: the checkpoint has no decoder.layers.3."));
  // Without --finetune it would be another model.
  const Outcome resumed = run(kCommand, short_run.with("--load", save).words());
  EXPECT_NE(resumed.exit_code, 0);
  EXPECT_THAT(resumed.err, HasSubstr("missing: the checkpoint has no decoder.layers.1.pre_cross_"));
}

// Megatron-LM's layers: the sixth one of six attends. A run goes on from a checkpoint in either of
// its forms, with the optimizer's state, as from our own.
class RetroInterchangeTest : public LayoutTest {
 protected:
  Flags flags(const std::string& residual) const {
    return retro(golden_flags())
        .without("--retro-layer-numbers")
        .with("--num-layers", "6")
        .with("--train-iters", "4")
        .with("--retro-encoder-residual", residual)
        .with("--retro-encoder-layers", "3");
  }
  void convert(const std::string& from, const std::string& to, const Words& more) const {
    Words words = {"--load-dir", path(from).string(), "--save-dir", path(to).string()};
    words.insert(words.end(), more.begin(), more.end());
    const Outcome outcome = run("convert-checkpoint", words);
    EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
    EXPECT_THAT(outcome.out, HasSubstr("every tensor was read again and is the same"));
  }
  // Losses of four more iterations.
  std::vector<Metrics> continued(const std::string& from, const Flags& flags) {
    return trained(flags.with("--load", path(from).string())
                       .with("--train-iters", "8")
                       .with("--override-opt_param-scheduler"),
                   {}, "from-" + from, kCommand);
  }
};

TEST_F(RetroInterchangeTest, GoesOnFromMegatronLmsForms) {
  struct Form {
    std::string residual, saver, other;
  };
  for (const Form& form : {Form{"pre", "megatron", "core"}, Form{"post", "core", "megatron"},
                           Form{"post", "core-te", "megatron"}}) {
    const std::string own = "own-" + form.saver;
    const Flags model = flags(form.residual);
    train(model.with("--save", path(own).string()).with("--save-interval", "4"), {}, kCommand);
    const std::vector<Metrics> want = continued(own, model);
    ASSERT_GE(want.size(), 4u);
    const std::string divided = form.saver + "-2";
    convert(own, divided, {"--saver", form.saver, "--target-tensor-parallel-size", "2"});
    const Flags shown = model.without("--retro-encoder-residual")
                            .without("--retro-encoder-layers")
                            .with("--use-checkpoint-args");
    expect_equal(continued(divided, shown), want, divided);
    const std::string back = form.saver + "-back";
    convert(divided, back, {"--saver", "native"});
    expect_equal(continued(back, model), want, back);
    if (form.residual == "post") {
      const Flags other =
          model.with("--retro-encoder-residual", "pre").with("--load", path(divided).string());
      EXPECT_THAT(run(kCommand, other.words()).err, HasSubstr("--retro-encoder-residual"));
    }
    // The other form computes another model.
    const Outcome refused =
        run("convert-checkpoint", {"--load-dir", path(own).string(), "--save-dir",
                                   path("no").string(), "--saver", form.other});
    EXPECT_EQ(refused.exit_code, 2);
    EXPECT_THAT(refused.err, HasSubstr("is not what this form of Megatron-LM computes"));
  }
}

TEST_F(RetroInterchangeTest, IsSavedByATrainingOfTwoRanks) {
  const Flags model = flags("pre");
  const std::vector<Metrics> want = trained(model, {}, "want", kCommand);
  trained(model.with("--save", path("saved").string())
              .with("--save-interval", "4")
              .with("--save-format", "megatron"),
          {.tp = 2}, "tp", kCommand);
  EXPECT_TRUE(std::filesystem::exists(path("saved/iter_0000004/mp_rank_01/model_optim_rng.pt")));
  const Outcome outcome = train(model.with("--load", path("saved").string())
                                    .with("--skip-train")
                                    .with("--use-checkpoint-args"),
                                {}, kCommand);
  EXPECT_THAT(outcome.out, HasSubstr("validation loss at iteration 4"));
  const Outcome layers =
      run("convert-checkpoint",
          {"--load-dir", path("saved").string(), "--save-dir", path("no").string(), "--saver",
           "megatron", "--target-pipeline-parallel-size", "2"});
  EXPECT_THAT(layers.err, HasSubstr("a Retro has one pipeline stage"));
}

TEST_F(PretrainRetroTest, NamesEverythingThatItHasNot) {
  const Flags wrong =
      flags()
          .without("--mock-data")
          .with("--data-path", golden("megatron/data/corpus_text_document").string())
          .with("--tensor-model-parallel-size", "2")
          .with("--sequence-parallel")
          .with("--save", path("save").string())
          .with("--save-interval", "2")
          .with("--save-format", "hf");
  Words words = {"--nproc-per-node", "2", kCommand};
  for (const std::string& word : wrong.words()) words.push_back(word);
  const Outcome outcome = run("launch", words);
  EXPECT_EQ(outcome.exit_code, 2);
  for (const char* problem : {"--sequence-parallel is not available for Retro",
                              "--save-format hf is not available for Retro",
                              "--retro-add-retriever needs --retro-workdir"}) {
    EXPECT_THAT(outcome.err, HasSubstr(problem));
  }
  const Outcome gpt = run("pretrain-gpt", flags().words());
  EXPECT_EQ(gpt.exit_code, 2);
  EXPECT_THAT(gpt.err, HasSubstr("--retro-add-retriever is for pretrain-retro"));
}

class PretrainRetroResumeTest : public ExactResumeTest {};

TEST_F(PretrainRetroResumeTest, IsExact) {
  expect_exact_resume(retro(golden_flags()), 7, kCommand);
}

}  // namespace
}  // namespace megatron::program

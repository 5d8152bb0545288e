#include <algorithm>

#include "tests/program/layout_runs.h"

// `megatron pretrain-t5` on the sentences of the golden data.
namespace megatron::program {
namespace {

const std::string kT5Command = "pretrain-t5";

// A layout, and the stage at which the decoder begins.
struct SplitLayout {
  Layout layout;
  int split = 0;
};

class T5Test : public LayoutTest {
 protected:
  // 20 iterations of a small model with dropout.
  Flags t5() const {
    return golden_flags()
        .without("--merge-file")
        .with("--tokenizer-type", "BertWordPieceLowerCase")
        .with("--vocab-extra-ids", "100")
        .with("--padded-vocab-size", "512")  // in every layout
        .with("--num-layers", "2")
        .with("--decoder-num-layers", "2")
        .with("--decoder-seq-length", "16")
        .with("--vocab-file", golden("megatron/data/bert-vocab.txt").string())
        .with("--data-path", golden("megatron/data/sentences_text_sentence").string())
        .with("--micro-batch-size", "2")
        .with("--attention-dropout", "0.1")
        .with("--hidden-dropout", "0.1");
  }

  std::vector<Metrics> trained_t5(const Flags& flags, const SplitLayout& at = {},
                                  const std::string& name = "one") {
    return at.split == 0 ? trained(flags, at.layout, name, kT5Command)
                         : trained(flags.with("--pipeline-model-parallel-split-rank",
                                              std::to_string(at.split)),
                                   at.layout, name, kT5Command);
  }

  void expect_layouts(const Flags& flags, const std::vector<SplitLayout>& layouts) {
    const std::vector<Metrics> want = trained_t5(flags);
    ASSERT_GE(want.size(), 20u);
    for (const SplitLayout& at : layouts) {
      const std::string name = name_of(at.layout) + "_split" + std::to_string(at.split);
      expect_equal(trained_t5(flags, at, name), want, name);
    }
  }
};

// Spans of different lengths: microbatches have different numbers of labels.
TEST_F(T5Test, TokensCountAlikeInEveryMicrobatchAndLayout) {
  const Flags flags = t5().with("--calculate-per-token-loss").with("--eval-iters", "0");
  const std::vector<Metrics> want = trained_t5(flags.with("--micro-batch-size", "8"));
  EXPECT_EQ(want.size(), 20u);
  expect_equal(trained_t5(flags.with("--micro-batch-size", "1"), {}, "small"), want, "small");
  expect_equal(trained_t5(flags, {.layout = {.pp = 2, .dp = 2}, .split = 1}, "ranks"), want,
               "ranks");
  const std::vector<Metrics> means =
      trained_t5(t5().with("--eval-iters", "0").with("--micro-batch-size", "1"), {}, "means");
  EXPECT_NE(means.front().at("grad_norm"), want.front().at("grad_norm"));
  EXPECT_GT(std::abs(means.front().at("lm loss") - want.front().at("lm loss")), 1e-5);
}

TEST_F(T5Test, Learns) {
  const std::vector<Metrics> metrics = trained_t5(t5());
  ASSERT_GE(metrics.size(), 20u);
  // An untrained model guesses among the rows of the vocabulary.
  EXPECT_NEAR(metrics.front().at("lm loss"), std::log(512), 0.4);
  EXPECT_LT(metrics[19].at("lm loss"), metrics.front().at("lm loss") - 0.3);
}

// Every layout without interleaved stages, and each stage at which the decoder can begin.
std::vector<SplitLayout> all_split_layouts() {
  std::vector<SplitLayout> all;
  for (const Layout& layout : all_layouts()) {
    if (layout.layers_a_chunk > 0) continue;
    if (layout.pp == 1) all.push_back({layout, 0});
    for (int split = 1; split < layout.pp; ++split) all.push_back({layout, split});
  }
  return all;
}

// With three stages the middle one hands the encoder's output on; with four each stack is cut.
TEST_F(T5Test, EveryLayoutTrainsAsOneRank) {
  if (wants_all_layouts()) {
    expect_layouts(t5().with("--num-layers", "6").with("--decoder-num-layers", "6"),
                   all_split_layouts());
    return;
  }
  expect_layouts(
      t5(),
      {{{.tp = 2}},
       {{.tp = 4, .sequence_parallel = true}},
       {{.pp = 2}, 1},
       {{.pp = 3}, 1},
       {{.pp = 3}, 2},
       {{.pp = 4}, 2},
       {{.dp = 2, .distributed_optimizer = true, .overlap = true}},
       {{.tp = 2, .pp = 2, .dp = 2, .sequence_parallel = true, .distributed_optimizer = true}, 1}});
}

TEST_F(T5Test, RelativePositionsTrainAsOnOneRank) {
  const Flags flags = t5().with("--position-embedding-type", "relative")
                          .with("--untie-embeddings-and-output-weights")
                          .with("--normalization", "RMSNorm")
                          .with("--disable-bias-linear");
  expect_layouts(flags, {{{.tp = 2, .sequence_parallel = true}},
                         {{.pp = 4}, 2},
                         {{.tp = 2, .pp = 2, .dp = 2, .distributed_optimizer = true}, 1}});
}

TEST_F(T5Test, AStoppedRunGoesOnInAnotherLayout) {
  const std::vector<Metrics> whole = trained_t5(t5());
  const std::string save = path("save").string();
  const Flags saved = t5().with("--save", save).with("--save-interval", "10");
  trained_t5(saved.with("--exit-interval", "10"), {{.tp = 2}}, "first");
  const std::vector<Metrics> rest =
      trained_t5(saved.with("--load", save), {{.pp = 4}, 2}, "second");
  ASSERT_FALSE(rest.empty());
  for (const auto& [key, value] : whole.back()) {
    EXPECT_NEAR(rest.back().at(key), value, 1e-5 * std::abs(value)) << key;
  }
}

TEST_F(T5Test, RecomputationChangesNothing) {
  const std::vector<Metrics> want = trained_t5(t5());
  const Flags recomputed = t5().with("--recompute-granularity", "full")
                               .with("--recompute-method", "uniform")
                               .with("--recompute-num-layers", "1");
  expect_equal(trained_t5(recomputed, {}, "recomputed"), want, "recomputed");
  expect_equal(trained_t5(recomputed, {{.pp = 3}, 1}, "stages"), want, "recomputed on stages");
}

TEST_F(T5Test, NamesEverythingThatItHasNot) {
  const Flags flags =
      t5().with("--position-embedding-type", "rope").with("--pipeline-model-parallel-size", "2");
  Words words = {"--nproc-per-node", "2", kT5Command};
  for (const std::string& word : flags.words()) words.push_back(word);
  const Outcome outcome = run("launch", words);
  EXPECT_EQ(outcome.exit_code, 2);
  for (const char* flag :
       {"--position-embedding-type learned_absolute", "--pipeline-model-parallel-split-rank"}) {
    EXPECT_THAT(outcome.err, testing::HasSubstr(flag));
  }
}

}  // namespace
}  // namespace megatron::program

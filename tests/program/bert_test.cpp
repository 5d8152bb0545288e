#include <algorithm>

#include "tests/program/layout_runs.h"

// `megatron pretrain-bert` on the sentences of the golden data.
namespace megatron::program {
namespace {

class BertTest : public LayoutTest {
 protected:
  // 20 iterations of a small model with dropout.
  Flags bert() const {
    return golden_flags()
        .without("--merge-file")
        .with("--tokenizer-type", "BertWordPieceLowerCase")
        .with("--padded-vocab-size", "512")  // in every layout
        .with("--vocab-file", golden("megatron/data/bert-vocab.txt").string())
        .with("--data-path", golden("megatron/data/sentences_text_sentence").string())
        .with("--micro-batch-size", "2")
        .with("--attention-dropout", "0.1")
        .with("--hidden-dropout", "0.1");
  }
};

TEST_F(BertTest, LearnsBothTasks) {
  const std::vector<Metrics> metrics = trained(bert(), {}, "one", "pretrain-bert");
  ASSERT_GE(metrics.size(), 20u);
  // An untrained model guesses among the rows of the vocabulary, and between two orders.
  EXPECT_NEAR(metrics.front().at("lm loss"), std::log(512), 0.4);
  EXPECT_NEAR(metrics.front().at("sop loss"), std::log(2), 0.05);
  EXPECT_LT(metrics[19].at("lm loss"), metrics.front().at("lm loss") - 0.1);
}

TEST_F(BertTest, EveryLayoutTrainsAsOneRank) {
  const Flags flags = bert().with("--num-layers", "8").with("--micro-batch-size", "1");
  const std::vector<Metrics> want = trained(flags, {}, "one", "pretrain-bert");
  for (const Layout& layout : layouts()) {
    expect_equal(trained(flags, layout, name_of(layout), "pretrain-bert"), want, name_of(layout));
  }
  const Flags divided = flags.with("--pipeline-model-parallel-layout", "Et*4a|ft*3L");
  expect_equal(trained(divided, {.pp = 2}, "divided", "pretrain-bert"), want, "a divided layer");
}

TEST_F(BertTest, WithoutTheBinaryHeadThereIsOneLoss) {
  const Flags flags = bert().with("--bert-no-binary-head");
  const std::vector<Metrics> want = trained(flags, {}, "one", "pretrain-bert");
  EXPECT_EQ(want.front().count("sop loss"), 0u);
  expect_equal(trained(flags, {.tp = 2, .pp = 2}, "two", "pretrain-bert"), want, "tp2pp2");
}

TEST_F(BertTest, TokensCountAlikeInEveryMicrobatchAndLayout) {
  const Flags flags = bert()
                          .with("--bert-no-binary-head")
                          .with("--calculate-per-token-loss")
                          .with("--eval-iters", "0");
  const std::vector<Metrics> want =
      trained(flags.with("--micro-batch-size", "8"), {}, "one", "pretrain-bert");
  EXPECT_EQ(want.size(), 20u);
  expect_equal(trained(flags.with("--micro-batch-size", "1"), {}, "small", "pretrain-bert"), want,
               "small");
  expect_equal(trained(flags, {.tp = 2, .pp = 2, .dp = 2}, "ranks", "pretrain-bert"), want,
               "ranks");
  const Outcome refused = run("pretrain-bert", bert().with("--calculate-per-token-loss").words());
  EXPECT_EQ(refused.exit_code, 2);
  EXPECT_THAT(refused.err, testing::HasSubstr("--calculate-per-token-loss: this task of BERT"));
}

TEST_F(BertTest, AStoppedRunGoesOnInAnotherLayout) {
  const std::vector<Metrics> whole = trained(bert(), {}, "whole", "pretrain-bert");
  const std::string save = path("save").string();
  const Flags saved = bert().with("--save", save).with("--save-interval", "10");
  trained(saved.with("--exit-interval", "10"), {.tp = 2}, "first", "pretrain-bert");
  const std::vector<Metrics> rest =
      trained(saved.with("--load", save), {.pp = 2}, "second", "pretrain-bert");
  ASSERT_FALSE(rest.empty());
  const Metrics& last = rest.back();
  for (const auto& [key, value] : whole.back()) {
    EXPECT_NEAR(last.at(key), value, 1e-5 * std::abs(value)) << key;
  }
}

TEST_F(BertTest, RecomputationChangesNothing) {
  const std::vector<Metrics> want = trained(bert(), {}, "plain", "pretrain-bert");
  const Flags recomputed = bert()
                               .with("--recompute-granularity", "full")
                               .with("--recompute-method", "uniform")
                               .with("--recompute-num-layers", "1");
  expect_equal(trained(recomputed, {}, "recomputed", "pretrain-bert"), want, "recomputed");
}

TEST_F(BertTest, NamesEverythingThatItHasNot) {
  const Flags flags =
      bert().with("--context-parallel-size", "2").with("--position-embedding-type", "rope");
  Words words = {"--nproc-per-node", "2", "pretrain-bert"};
  for (const std::string& word : flags.words()) words.push_back(word);
  const Outcome outcome = run("launch", words);
  EXPECT_EQ(outcome.exit_code, 2);
  for (const char* flag : {"--context-parallel-size 2", "--position-embedding-type"}) {
    EXPECT_THAT(outcome.err, testing::HasSubstr(flag));
  }
}

}  // namespace
}  // namespace megatron::program

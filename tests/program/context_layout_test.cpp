#include <string>
#include <vector>

#include "tests/program/layout_runs.h"

// A sequence over several ranks, however their keys and queries meet, is the training of one rank.
namespace megatron::program {
namespace {

constexpr const char* kTypes[] = {"p2p", "all_gather", "a2a"};

class ContextLayoutTest : public LayoutTest {
 protected:
  // Of every type: a layout must train as one rank.
  void expect_as_one_rank(const Flags& flags, const std::vector<Layout>& layouts,
                          const std::string& style) {
    const std::vector<Metrics> want = trained(flags, {}, style + "one");
    ASSERT_GE(want.size(), 20u);
    for (Layout layout : layouts) {
      for (const char* type : kTypes) {
        layout.cp_comm_type = type;
        const std::string name = style + name_of(layout);
        expect_equal(trained(flags, layout, name), want, name);
      }
    }
  }
};

TEST_F(ContextLayoutTest, EveryTypeTrainsAsOneRank) {
  for (const bool is_llama_style : {false, true}) {
    expect_as_one_rank(
        model(is_llama_style).with("--eval-iters", "2"),
        {{.cp = 2}, {.cp = 4}, {.tp = 2, .sequence_parallel = true, .cp = 2}, {.pp = 2, .cp = 2}},
        is_llama_style ? "llama_" : "gpt_");
  }
}

TEST_F(ContextLayoutTest, ReplicasTrainAsOneRank) {
  const Layout layout{.dp = 2, .distributed_optimizer = true, .overlap = true, .cp = 2};
  expect_equal(trained(model(false), layout, "replicas"), trained(model(false), {}, "one"),
               "replicas");
}

// Documents that do not see each other, positions that begin with each, ends that do not count, and
// attention that is computed twice.
TEST_F(ContextLayoutTest, RanksKnowTheBordersOfDocuments) {
  for (const bool is_llama_style : {false, true}) {
    expect_as_one_rank(model(is_llama_style)
                           .with("--micro-batch-size", "2")
                           .with("--reset-attention-mask")
                           .with("--reset-position-ids")
                           .with("--eod-mask-loss")
                           .with("--recompute-granularity", "full")
                           .with("--recompute-method", "uniform")
                           .with("--recompute-num-layers", "1"),
                       {{.cp = 2}, {.tp = 2, .pp = 2, .cp = 2}},
                       is_llama_style ? "llama_" : "gpt_");
  }
}

// Ranks have different numbers of tokens that count.
TEST_F(ContextLayoutTest, TokensCountAlikeOnEveryRank) {
  const Flags masked = model(false).with("--eod-mask-loss").with("--eval-iters", "0");
  const Flags weighed = masked.with("--calculate-per-token-loss");
  const std::vector<Metrics> want = trained(weighed, {}, "one");
  EXPECT_NE(want, trained(masked, {}, "means"));
  for (const Layout& layout :
       {Layout{.cp = 2}, Layout{.dp = 2, .cp = 2}, Layout{.dp = 2, .zero_stage = 3},
        Layout{.pp = 2, .layers_a_chunk = 1, .dp = 2},
        Layout{
            .tp = 2, .pp = 2, .dp = 2, .sequence_parallel = true, .distributed_optimizer = true}}) {
    expect_equal(trained(weighed, layout, name_of(layout)), want, name_of(layout));
  }
}

// Without dropout or borders, positions matter only to the causal mask, and the ring joins chunks.
TEST_F(ContextLayoutTest, PlainAttentionTrainsAsOneRank) {
  expect_as_one_rank(model(true).with("--attention-dropout", "0").with("--hidden-dropout", "0"),
                     {{.cp = 2}, {.cp = 4}}, "plain_");
}

// Neighbours exchange heads, and rings of them keys: where the ring joins chunks, and with dropout,
// documents and windows.
TEST_F(ContextLayoutTest, LevelsTrainAsOneRank) {
  const Flags plain = model(true).with("--attention-dropout", "0").with("--hidden-dropout", "0");
  const Flags by_position = model(true)
                                .with("--micro-batch-size", "2")
                                .with("--reset-attention-mask")
                                .with("--reset-position-ids")
                                .with("--eod-mask-loss")
                                .with("--window-size", "6,0");
  for (const auto& [style, flags] :
       {std::pair{"levels_plain_", plain}, std::pair{"levels_positions_", by_position}}) {
    const std::vector<Metrics> want = trained(flags, {}, std::string(style) + "one");
    for (const auto& [cp, heads] : {std::pair{4, 2}, std::pair{8, 2}, std::pair{8, 4}}) {
      const Layout layout{.cp = cp, .cp_comm_type = "a2a+p2p", .cp_heads = heads};
      const std::string name = style + name_of(layout);
      expect_equal(trained(flags, layout, name), want, name);
    }
  }
}

TEST_F(ContextLayoutTest, LevelsOfTensorParallelRanksHaveTheSameBits) {
  const Layout layout{
      .tp = 2, .sequence_parallel = true, .cp = 4, .cp_comm_type = "a2a+p2p", .cp_heads = 2};
  const std::vector<Metrics> first = trained(model(false), layout, "first");
  expect_equal(first, trained(model(false), {}, "one"), "levels");
  EXPECT_EQ(trained(model(false), layout, "second"), first);
}

TEST_F(ContextLayoutTest, ACheckpointOfOneTypeIsGoneOnFromWithAnother) {
  const std::vector<Metrics> want = trained(model(true), {}, "straight");
  for (const auto& [from, to] :
       {std::pair{"p2p", "all_gather"}, std::pair{"all_gather", "a2a"}, std::pair{"a2a", "p2p"}}) {
    const std::string saved = path(std::string("saved_") + from).string();
    std::vector<Metrics> all =
        trained(model(true)
                    .with("--save", saved)
                    .with("--save-interval", "1000")
                    .with("--exit-interval", "10"),
                {.cp = 2, .cp_comm_type = from}, std::string("begun_") + from);
    const std::string name = std::string("resumed_") + to;
    for (const Metrics& line :
         trained(model(true).with("--load", saved), {.tp = 2, .cp = 2, .cp_comm_type = to}, name)) {
      all.push_back(line);
    }
    expect_equal(all, want, name);
  }
}

TEST_F(ContextLayoutTest, TwoRunsHaveTheSameBits) {
  for (const char* type : kTypes) {
    const Layout layout{.cp = 2, .cp_comm_type = type};
    EXPECT_EQ(trained(model(false), layout, "first"), trained(model(false), layout, "second"));
  }
}

}  // namespace
}  // namespace megatron::program

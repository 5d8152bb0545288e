#include <cmath>
#include <nlohmann/json.hpp>

#include "tests/program/layout_runs.h"

// However a model is spread over ranks, it is the same training: same first weights, same losses
// and norms within rounding, and a checkpoint that any other layout can go on from.
namespace megatron::program {
namespace {

TEST_F(LayoutTest, EveryLayoutTrainsAsOneRank) {
  for (const bool is_llama_style : {false, true}) {
    const Flags flags = model(is_llama_style);
    const std::string style = is_llama_style ? "llama_" : "gpt_";
    const std::vector<Metrics> want = trained(flags, {}, style + "one");
    ASSERT_GE(want.size(), 20u);
    for (const Layout& layout : layouts()) {
      const std::string name = style + name_of(layout);
      expect_equal(trained(flags, layout, name), want, name);
    }
  }
}

// Data-parallel ranks and stages have whole matrices. Tensor-parallel ranks make their parts
// orthogonal, which is another optimizer, but a similar one.
TEST_F(LayoutTest, MuonTrainsWholeMatricesAsOneRank) {
  for (const bool is_llama_style : {false, true}) {
    const Flags flags = model(is_llama_style)
                            .with("--eval-iters", "0")
                            .with("--optimizer", "muon")
                            .with("--muon-fp32-matmul-prec", "high");
    const std::string style = is_llama_style ? "muon_llama_" : "muon_";
    const std::vector<Metrics> want = trained(flags, {}, style + "one");
    ASSERT_EQ(want.size(), 20u);
    for (const Layout& layout :
         {Layout{.dp = 2}, Layout{.pp = 2, .dp = 2, .overlap = true}, Layout{.cp = 2},
          Layout{.dp = 2, .distributed_optimizer = true},
          Layout{.dp = 4, .distributed_optimizer = true, .overlap = true},
          Layout{.pp = 2, .dp = 2, .distributed_optimizer = true}, Layout{.dp = 4, .zero_stage = 2},
          Layout{.dp = 4, .distributed_optimizer = true, .overlap = true, .instances = 2},
          Layout{.dp = 2, .cp = 2, .zero_stage = 3}}) {
      const std::string name = style + name_of(layout);
      expect_equal(trained(flags, layout, name), want, name);
    }
    const std::vector<Metrics> parts = trained(flags, {.tp = 2}, style + "tp2");
    EXPECT_NEAR(parts.back().at("lm loss"), want.back().at("lm loss"), 0.1);
    for (const Layout& layout : {Layout{.tp = 2, .dp = 2, .distributed_optimizer = true},
                                 Layout{.tp = 2, .dp = 2, .zero_stage = 3}}) {
      const std::string name = style + name_of(layout);
      expect_equal(trained(flags, layout, name), parts, name);
    }
  }
}

// Momentum is saved by parameter; ranks that divide it go on from any other division.
TEST_F(LayoutTest, MuonsCheckpointIsGoneOnFromInAnyOtherDivision) {
  const Flags flags = model(true)
                          .with("--eval-iters", "0")
                          .with("--optimizer", "muon")
                          .with("--muon-fp32-matmul-prec", "high");
  const std::vector<Metrics> want = trained(flags, {}, "straight");
  const std::vector<Layout> layouts = {
      {}, {.dp = 4, .distributed_optimizer = true}, {.dp = 2, .zero_stage = 3}};
  for (const Layout& saving : layouts) {
    const std::string folder = "saved_" + name_of(saving);
    const std::vector<Metrics> begun = trained(flags.with("--save", path(folder).string())
                                                   .with("--save-interval", "1000")
                                                   .with("--exit-interval", "10"),
                                               saving, "begun_" + name_of(saving));
    for (const Layout& loading : layouts) {
      const std::string name = name_of(saving) + "_to_" + name_of(loading);
      std::vector<Metrics> all = begun;
      for (const Metrics& line :
           trained(flags.with("--load", path(folder).string()), loading, name)) {
        all.push_back(line);
      }
      expect_equal(all, want, name);
    }
  }
}

// 150 iterations of two layers: Muon is ahead of Adam with the same rates.
TEST_F(LayoutTest, MuonLearns) {
  const Flags flags = golden_flags()
                          .with("--eval-iters", "0")
                          .with("--train-iters", "150")
                          .with("--lr-decay-style", "constant");
  const double adam = trained(flags, {}, "adam").back().at("lm loss");
  const double muon = trained(flags.with("--optimizer", "muon"), {}, "muon").back().at("lm loss");
  EXPECT_LT(muon, adam);
  EXPECT_LT(muon, 5);
}

TEST_F(LayoutTest, EveryFlagOfMuonChangesTheRun) {
  const Flags flags =
      model(true).with("--eval-iters", "0").with("--optimizer", "muon").with("--train-iters", "3");
  const std::vector<Metrics> plain = trained(flags, {}, "plain");
  const std::vector<Flags> changes = {flags.with("--muon-momentum", "0.5"),
                                      flags.with("--muon-no-split-qkv"),
                                      flags.with("--muon-use-nesterov"),
                                      flags.with("--muon-scale-mode", "shape_scaling"),
                                      flags.with("--muon-scale-mode", "unit_rms_norm"),
                                      flags.with("--muon-fp32-matmul-prec", "high"),
                                      flags.with("--muon-num-ns-steps", "3"),
                                      flags.with("--muon-extra-scale-factor", "0.2")};
  for (size_t i = 0; i < changes.size(); ++i) {
    EXPECT_NE(trained(changes[i], {}, "changed" + std::to_string(i)), plain) << i;
  }
}

TEST_F(LayoutTest, BenchTimesEveryKindOfLayout) {
  const Layout layouts[] = {{.tp = 2, .sequence_parallel = true},
                            {.pp = 2, .dp = 2, .distributed_optimizer = true, .overlap = true},
                            {.cp = 2}};
  for (const Layout& layout : layouts) {
    Words words = tiny_bench(layout.ranks(), {"--steps", "2", "--warmup", "1", "--breakdown",
                                              "--num-microbatches", "4"});
    for (const std::string& word : laid_out(Flags(), layout).words()) words.push_back(word);
    const Outcome outcome = run("launch", words);
    ASSERT_EQ(outcome.exit_code, 0) << outcome.err;
    const nlohmann::json report = nlohmann::json::parse(outcome.out);
    EXPECT_EQ(report["ranks"], layout.ranks());
    EXPECT_EQ(report["global_batch_size"], 4 * 2 * layout.dp);
    EXPECT_DOUBLE_EQ(report["tokens_per_second"].get<double>(),
                     report["tokens_per_second_per_rank"].get<double>() * layout.ranks());
    EXPECT_NEAR(report["loss"].get<double>(), std::log(512), 0.5);
    EXPECT_GT(report["exposed_communication_percent"], 0);
    EXPECT_EQ(report["waiting_for_stages_percent"] > 0, layout.pp > 1);
    EXPECT_LE(report["exposed_communication_percent"].get<double>() +
                  report["waiting_for_stages_percent"].get<double>(),
              100);
  }
}

TEST_F(LayoutTest, TwoRunsHaveTheSameBits) {
  const Layout layout{
      .tp = 2, .pp = 2, .dp = 2, .sequence_parallel = true, .distributed_optimizer = true};
  EXPECT_EQ(trained(model(false), layout, "first"), trained(model(false), layout, "second"));
}

// Options that only change the time of communication or the storage of state change no bit.
TEST_F(LayoutTest, OverlapsKeepTheBits) {
  struct Case {
    const char* name;
    Layout layout;
    Words plain;       // flags of both runs
    Words overlapped;  // and of the second
  };
  const Words recomputed = {"--recompute-granularity", "full", "--recompute-method", "block",
                            "--recompute-num-layers",  "5"};
  const Case cases[] = {
      {"param_gather",
       {.pp = 2, .dp = 2, .distributed_optimizer = true, .overlap = true},
       {"--eval-interval", "8", "--eval-iters", "2"},
       {"--overlap-param-gather"}},
      {"param_gather_interleaved",
       {.pp = 4, .layers_a_chunk = 1, .dp = 2, .distributed_optimizer = true, .overlap = true},
       {},
       {"--overlap-param-gather"}},
      {"saved_activations", {.tp = 2}, recomputed, {"--distribute-saved-activations"}},
      {"inputs_on_host", {.pp = 2, .dp = 2}, recomputed, {"--checkpoint-in-cpu"}},
      {"inputs_on_host_interleaved",
       {.pp = 4, .layers_a_chunk = 1},
       recomputed,
       {"--checkpoint-in-cpu"}},
      {"parts_on_host",
       {.tp = 2},
       recomputed,
       {"--distribute-saved-activations", "--checkpoint-in-cpu"}},
      {"gradients", {.tp = 2}, {}, {"--no-async-tensor-model-parallel-allreduce"}},
  };
  for (const Case& c : cases) {
    Flags plain = model(false);
    for (size_t i = 0; i < c.plain.size(); i += 2) plain = plain.with(c.plain[i], c.plain[i + 1]);
    Flags overlapped = plain;
    for (const std::string& flag : c.overlapped) overlapped = overlapped.with(flag);
    EXPECT_EQ(trained(overlapped, c.layout, std::string(c.name) + "_overlapped"),
              trained(plain, c.layout, std::string(c.name) + "_plain"))
        << c.name;
  }
}

// Products cut in pieces, tied embeddings and not: the gradients of some weights are summed up in
// another order.
TEST_F(LayoutTest, ProductsByPiecesTrainAsOneRank) {
  for (const bool is_llama_style : {false, true}) {
    const Flags flags = model(is_llama_style);
    const std::string style = is_llama_style ? "llama_" : "gpt_";
    const std::vector<Metrics> want = trained(flags, {}, style + "one");
    for (const Layout& layout :
         {Layout{.tp = 2, .sequence_parallel = true}, Layout{.tp = 4, .sequence_parallel = true},
          Layout{.tp = 2, .pp = 2, .sequence_parallel = true}}) {
      Flags overlapped = flags.with("--tp-comm-overlap");
      if (layout.pp > 1) {
        overlapped = overlapped.with("--recompute-granularity", "full")
                         .with("--recompute-method", "uniform")
                         .with("--recompute-num-layers", "1");
      }
      const std::string name = style + name_of(layout) + "_by_pieces";
      expect_equal(trained(overlapped, layout, name), want, name);
    }
  }
}

TEST_F(LayoutTest, ACheckpointIsGoneOnFromInAnyOtherLayout) {
  const Flags flags =
      model(true).with("--save", path("saved").string()).with("--save-interval", "1000");
  const std::vector<Metrics> want = trained(model(true), {}, "straight");
  const Layout saving{
      .tp = 2, .dp = 2, .sequence_parallel = true, .distributed_optimizer = true, .overlap = true};
  // What is saved includes parameters that are still on their way.
  const std::vector<Metrics> begun =
      trained(flags.with("--exit-interval", "10").with("--overlap-param-gather"), saving, "begun");

  for (const Layout& layout :
       {Layout{}, saving, Layout{.tp = 4}, Layout{.pp = 4, .layers_a_chunk = 1},
        Layout{.tp = 2, .pp = 2, .dp = 2, .distributed_optimizer = true},
        Layout{.dp = 2, .distributed_optimizer = true, .cp = 2}}) {
    const std::string name = "resumed_" + name_of(layout);
    std::vector<Metrics> all = begun;
    for (const Metrics& line :
         trained(model(true).with("--load", path("saved").string()), layout, name)) {
      all.push_back(line);
    }
    expect_equal(all, want, name);
  }
}

// Keys and values that several ranks share, and norms of heads, whose gradients each rank has a
// part of.
TEST_F(LayoutTest, SharedGroupsAndNormedHeadsTrainAsOneRank) {
  const Layout layouts[] = {{.tp = 2},
                            {.tp = 2, .pp = 2, .dp = 2, .distributed_optimizer = true},
                            {.tp = 4},
                            {.tp = 4, .sequence_parallel = true}};
  for (const char* groups : {"1", "2"}) {
    const Flags flags = model(true).with("--num-query-groups", groups).with("--qk-layernorm");
    const std::string style = std::string(groups) + "_groups_";
    const std::vector<Metrics> want = trained(flags, {}, style + "one");
    for (const Layout& layout : layouts) {
      const std::string name = style + name_of(layout);
      expect_equal(trained(flags, layout, name), want, name);
    }
    const Flags plain = model(true).with("--num-query-groups", groups);
    EXPECT_NE(trained(plain, {}, style + "without_norms").back(), want.back());
  }
}

// Options of layers, as the models that have them put them together.
TEST_F(LayoutTest, LayerOptionsTrainAsOneRank) {
  const std::pair<const char*, Flags> models[] = {
      {"olmo2", model(true)
                    .with("--norm-placement", "after")
                    .with("--qk-layernorm")
                    .with("--qk-layernorm-of-projection")},
      {"gemma2", model(true)
                     .with("--norm-placement", "both")
                     .with("--apply-layernorm-1p")
                     .with("--embedding-multiplier", "3.3")
                     .with("--final-logit-softcapping", "2")},
      {"gptj", model(false)
                   .with("--parallel-residual")
                   .with("--parallel-residual-shares-norm")
                   .with("--attention-bias", "false")
                   .with("--untie-embeddings-and-output-weights")
                   .with("--add-output-bias")},
      {"cohere", model(false)
                     .with("--disable-norm-bias")
                     .with("--qk-layernorm")
                     .with("--qk-layernorm-weight-per-head")
                     .with("--learned-position-offset", "2")
                     .with("--residual-multiplier", "0.5")
                     .with("--logits-multiplier", "0.5")}};
  const Layout layouts[] = {{.tp = 2, .sequence_parallel = true},
                            {.pp = 2},
                            {.tp = 2, .pp = 2, .dp = 2, .distributed_optimizer = true},
                            {.cp = 2}};
  for (const auto& [name, flags] : models) {
    const Flags short_run = flags.with("--eval-iters", "0").with("--train-iters", "5");
    const std::vector<Metrics> want = trained(short_run, {}, std::string(name) + "_one");
    for (const Layout& layout : layouts) {
      const std::string run = std::string(name) + "_" + name_of(layout);
      expect_equal(trained(short_run, layout, run), want, run);
    }
  }
}

TEST_F(LayoutTest, ACheckpointOfSharedGroupsIsGoneOnFrom) {
  const Flags flags = model(true).with("--num-query-groups", "1").with("--qk-layernorm");
  const std::vector<Metrics> want = trained(flags, {}, "straight");
  const std::vector<Metrics> begun =
      trained(flags.with("--save", path("saved").string())
                  .with("--save-interval", "1000")
                  .with("--exit-interval", "10"),
              {.tp = 4, .sequence_parallel = true, .distributed_optimizer = true}, "begun");
  for (const Layout& layout : {Layout{}, Layout{.tp = 2}, Layout{.tp = 4, .dp = 2}}) {
    const std::string name = "resumed_" + name_of(layout);
    std::vector<Metrics> all = begun;
    for (const Metrics& line :
         trained(flags.with("--load", path("saved").string()), layout, name)) {
      all.push_back(line);
    }
    expect_equal(all, want, name);
  }
}

}  // namespace
}  // namespace megatron::program

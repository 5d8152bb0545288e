#include <cmath>
#include <cstdlib>

#include "tests/program/program_test.h"

// However a model is spread over ranks, it is the same training: same first weights, same losses
// and norms within rounding, and a checkpoint that any other layout can go on from.
namespace megatron::program {
namespace {

struct Layout {
  int tp = 1;
  int pp = 1;
  int layers_a_chunk = 0;  // of an interleaved pipeline; 0: none
  int dp = 1;
  bool sequence_parallel = false;
  bool distributed_optimizer = false;
  bool overlap = false;

  int ranks() const { return tp * pp * dp; }
};

std::string name_of(const Layout& layout) {
  return "tp" + std::to_string(layout.tp) + "pp" + std::to_string(layout.pp) +
         (layout.layers_a_chunk > 0 ? "i" : "") + "dp" + std::to_string(layout.dp) +
         (layout.sequence_parallel ? "_sp" : "") +
         (layout.distributed_optimizer ? "_distributed" : "") + (layout.overlap ? "_overlap" : "");
}

Flags laid_out(Flags flags, const Layout& layout) {
  flags = flags.with("--tensor-model-parallel-size", std::to_string(layout.tp))
              .with("--pipeline-model-parallel-size", std::to_string(layout.pp));
  if (layout.layers_a_chunk > 0) {
    flags = flags.with("--num-layers-per-virtual-pipeline-stage",
                       std::to_string(layout.layers_a_chunk));
  }
  if (layout.sequence_parallel) flags = flags.with("--sequence-parallel");
  if (layout.distributed_optimizer) flags = flags.with("--use-distributed-optimizer");
  if (layout.overlap) {
    flags = flags.with("--overlap-grad-reduce").with("--ddp-bucket-size", "20000");
  }
  return flags;
}

class LayoutTest : public ProgramTest {
 protected:
  // 20 iterations of a model of 8 layers, with dropout.
  Flags model(bool is_llama_style) const {
    const Flags gpt = golden_flags()
                          .with("--num-layers", "8")
                          .with("--micro-batch-size", "1")
                          .with("--attention-dropout", "0.1")
                          .with("--hidden-dropout", "0.1");
    return is_llama_style ? llama_style(gpt).with("--num-query-groups", "4") : gpt;
  }

  std::vector<Metrics> trained(const Flags& flags, const Layout& layout, const std::string& name) {
    const std::string metrics = path(name + ".jsonl").string();
    Words words = {"--nproc-per-node", std::to_string(layout.ranks()), "pretrain-gpt"};
    for (const std::string& word :
         laid_out(flags.with("--metrics-jsonl", metrics), layout).words()) {
      words.push_back(word);
    }
    const Outcome outcome = run("launch", words);
    EXPECT_EQ(outcome.exit_code, 0) << name << outcome.err << outcome.out;
    return metrics_of(metrics);
  }

  static void expect_equal(const std::vector<Metrics>& got, const std::vector<Metrics>& want,
                           const std::string& name) {
    ASSERT_EQ(got.size(), want.size()) << name;
    for (size_t i = 0; i < want.size(); ++i) {
      for (const auto& [key, value] : want[i]) {
        EXPECT_NEAR(got[i].at(key), value, 1e-5 * std::abs(value)) << name << ", " << key;
      }
    }
  }
};

// Few layouts that differ in everything; all up to eight ranks with MG_ALL_LAYOUTS in the
// environment.
std::vector<Layout> layouts() {
  if (std::getenv("MG_ALL_LAYOUTS") == nullptr) {
    return {{.tp = 2},
            {.tp = 4, .sequence_parallel = true},
            {.pp = 2},
            {.pp = 4, .layers_a_chunk = 1},
            {.dp = 2, .distributed_optimizer = true, .overlap = true},
            {.tp = 2, .pp = 2, .dp = 2, .sequence_parallel = true, .distributed_optimizer = true}};
  }
  std::vector<Layout> all;
  for (const int tp : {1, 2, 4}) {
    for (const int pp : {1, 2, 4}) {
      for (const int layers_a_chunk : {0, 1}) {
        for (const int dp : {1, 2}) {
          for (const bool sp : {false, true}) {
            for (const bool distributed : {false, true}) {
              const Layout layout{tp, pp, layers_a_chunk, dp, sp, distributed, distributed};
              const bool is_sensible =
                  layout.ranks() <= 8 && (tp > 1 || !sp) && (pp > 2 || layers_a_chunk == 0);
              if (is_sensible) all.push_back(layout);
            }
          }
        }
      }
    }
  }
  return all;
}

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

TEST_F(LayoutTest, TwoRunsHaveTheSameBits) {
  const Layout layout{
      .tp = 2, .pp = 2, .dp = 2, .sequence_parallel = true, .distributed_optimizer = true};
  EXPECT_EQ(trained(model(false), layout, "first"), trained(model(false), layout, "second"));
}

// What only changes when something is communicated, or in what form it is kept, changes no bit.
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
      {"gradients", {.tp = 2}, {}, {"--no-async-tensor-model-parallel-allreduce"}},
      {"products", {.tp = 2, .sequence_parallel = true}, {}, {"--tp-comm-overlap"}},
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
        Layout{.tp = 2, .pp = 2, .dp = 2, .distributed_optimizer = true}}) {
    const std::string name = "resumed_" + name_of(layout);
    std::vector<Metrics> all = begun;
    for (const Metrics& line :
         trained(model(true).with("--load", path("saved").string()), layout, name)) {
      all.push_back(line);
    }
    expect_equal(all, want, name);
  }
}

}  // namespace
}  // namespace megatron::program

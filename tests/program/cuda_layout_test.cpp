#include <array>
#include <string>
#include <tuple>
#include <vector>

#include "megatron/device/stream.h"
#include "tests/program/layout_runs.h"

// However a model is spread over GPUs, or over ranks that share one, it is the same training.
namespace megatron::program {
namespace {

class CudaLayoutTest : public LayoutTest {
 protected:
  void SetUp() override {
    if (num_cuda_devices() == 0) GTEST_SKIP() << "no GPU: not run";
  }
  static Flags on_gpu(const Flags& flags) {
    return flags.with("--device", "cuda").with("--deterministic-mode");
  }
  // Eight of everything that tensor-parallel ranks divide.
  Flags wide_model(bool is_llama_style) const {
    const Flags flags = on_gpu(model(is_llama_style))
                            .with("--hidden-size", "64")
                            .with("--make-vocab-size-divisible-by", "64")  // as many rows for TP8
                            .with("--num-attention-heads", "8");
    return is_llama_style ? flags.with("--num-query-groups", "8") : flags;
  }
};

// In the styles of GPT and Llama.
class CudaStyleTest : public CudaLayoutTest, public testing::WithParamInterface<bool> {
 protected:
  void expect_as_one_rank(const std::vector<Layout>& layouts) {
    const Flags flags = wide_model(GetParam());
    const std::vector<Metrics> want = trained(flags, {}, "one");
    ASSERT_GE(want.size(), 20u);
    for (const Layout& layout : layouts) {
      expect_equal(trained(flags, layout, name_of(layout)), want, name_of(layout));
    }
  }
};
INSTANTIATE_TEST_SUITE_P(Styles, CudaStyleTest, testing::Bool(),
                         [](const auto& style) { return style.param ? "llama" : "gpt"; });

TEST_P(CudaStyleTest, ModelParallelLayoutsTrainAsOneRank) {
  expect_as_one_rank({{.tp = 2},
                      {.tp = 4, .sequence_parallel = true},
                      {.tp = 8, .sequence_parallel = true},
                      {.pp = 2},
                      {.pp = 4, .layers_a_chunk = 1},
                      {.cp = 2}});
}

TEST_P(CudaStyleTest, DataParallelLayoutsTrainAsOneRank) {
  expect_as_one_rank({{.dp = 2, .distributed_optimizer = true, .overlap = true},
                      {.dp = 8, .distributed_optimizer = true, .overlap = true},
                      {.dp = 2, .zero_stage = 2},
                      {.dp = 4, .zero_stage = 3}});
}

TEST_P(CudaStyleTest, MixedLayoutsTrainAsOneRank) {
  expect_as_one_rank(
      {{.tp = 2, .dp = 2, .sequence_parallel = true, .zero_stage = 3},
       {.tp = 2, .pp = 2, .dp = 2, .sequence_parallel = true, .distributed_optimizer = true}});
}

constexpr const char* kContextTypes[] = {"p2p", "all_gather", "a2a"};

// Which keys a query sees: all earlier ones, some of them (dropout), or those of its document.
Flags with_attention(const Flags& flags, const std::string& kind) {
  if (kind == "plain") {
    return flags.with("--attention-dropout", "0").with("--hidden-dropout", "0");
  }
  if (kind == "dropping") return flags;
  return flags.with("--reset-attention-mask").with("--reset-position-ids");
}
const auto kAttentions = testing::Values("plain", "dropping", "documents");

class CudaContextTest : public CudaLayoutTest,
                        public testing::WithParamInterface<std::tuple<bool, std::string>> {};
INSTANTIATE_TEST_SUITE_P(Kinds, CudaContextTest, testing::Combine(testing::Bool(), kAttentions),
                         [](const auto& kind) {
                           return std::string(std::get<0>(kind.param) ? "llama_" : "gpt_") +
                                  std::get<1>(kind.param);
                         });

class CudaContextBf16Test : public CudaLayoutTest,
                            public testing::WithParamInterface<std::string> {};
INSTANTIATE_TEST_SUITE_P(Kinds, CudaContextBf16Test, kAttentions,
                         [](const auto& kind) { return kind.param; });

TEST_P(CudaContextTest, ContextLayoutsTrainAsOneRank) {
  const auto& [is_llama_style, kind] = GetParam();
  const Flags flags = with_attention(wide_model(is_llama_style), kind);
  const std::vector<Metrics> want = trained(flags, {}, "one");
  for (const char* type : kContextTypes) {
    // The styles share the layouts: each type meets each layout once.
    const std::array<Layout, 2> layouts =
        is_llama_style
            ? std::array{Layout{.cp = 4, .cp_comm_type = type},
                         Layout{.pp = 2, .cp = 2, .cp_comm_type = type}}
            : std::array{Layout{.cp = 2, .cp_comm_type = type},
                         Layout{.tp = 2, .sequence_parallel = true, .cp = 2, .cp_comm_type = type}};
    for (const Layout& layout : layouts) {
      expect_equal(trained(flags, layout, name_of(layout)), want, name_of(layout));
    }
  }
  const Layout levels{.cp = 4, .cp_comm_type = "a2a+p2p", .cp_heads = 2};
  if (is_llama_style) {
    expect_equal(trained(flags, levels, name_of(levels)), want, name_of(levels));
  }
}

// In 16 bits, with chunks that cuDNN and the kernels on tensor cores take.
TEST_P(CudaContextBf16Test, RanksTrainAlike) {
  const Flags flags = with_attention(wide_model(true)
                                         .with("--bf16")
                                         .with("--seq-length", "512")
                                         .with("--max-position-embeddings", "512")
                                         .with("--attention-dropout", "0.1")
                                         .with("--hidden-dropout", "0")
                                         .with("--eval-iters", "0")
                                         .with("--train-iters", "8"),
                                     GetParam());
  const double want = trained(flags, {}, "one").back().at("lm loss");
  for (const char* type : kContextTypes) {
    for (const int cp : {2, 4}) {
      const Layout layout{.cp = cp, .cp_comm_type = type};
      const std::string name = name_of(layout);
      const std::vector<Metrics> first = trained(flags, layout, name);
      EXPECT_NEAR(first.back().at("lm loss"), want, 0.01) << name;
      if (cp == 2) {
        EXPECT_EQ(trained(flags, layout, name + "_again"), first) << name;
      }
    }
  }
}

TEST_F(CudaLayoutTest, OverlapsTrainAsOneRank) {
  const Flags flags = wide_model(false);
  const std::vector<Metrics> want = trained(flags, {}, "one");
  const auto expect_same = [&](const Flags& overlapped, const Layout& layout,
                               const std::string& name) {
    expect_equal(trained(overlapped, layout, name), want, name);
  };
  expect_same(flags.with("--overlap-param-gather"),
              {.pp = 2, .dp = 2, .distributed_optimizer = true, .overlap = true}, "param_gather");
  expect_same(flags.with("--optimizer-cpu-offload"), {.dp = 2, .zero_stage = 3}, "offload");
  const Flags on_host = flags.with("--recompute-granularity", "full")
                            .with("--recompute-method", "uniform")
                            .with("--recompute-num-layers", "1")
                            .with("--checkpoint-in-cpu");
  expect_same(on_host, {.pp = 2, .dp = 2}, "on_host");
  expect_same(on_host, {.pp = 4, .layers_a_chunk = 1}, "on_host_interleaved");
  expect_same(on_host.with("--distribute-saved-activations"), {.tp = 2}, "parts_on_host");
  const Flags layers_on_host =
      flags.with("--cpu-offloading-num-layers", "3").with("--min-offloaded-tensor-size", "0");
  expect_same(layers_on_host, {.pp = 2, .dp = 2}, "layers_on_host");
  expect_same(layers_on_host, {.pp = 4, .layers_a_chunk = 1}, "layers_on_host_interleaved");
  expect_same(layers_on_host, {.tp = 2, .sequence_parallel = true}, "layers_on_host_tp");
}

// Five steps of products widen the last places of gradients that were summed in another order.
TEST_F(CudaLayoutTest, MuonsMatricesTrainAsOneRank) {
  const Flags flags = wide_model(false)
                          .with("--eval-iters", "0")
                          .with("--optimizer", "muon")
                          .with("--muon-fp32-matmul-prec", "high");
  const std::vector<Metrics> want = trained(flags, {}, "one");
  ASSERT_EQ(want.size(), 20U);
  for (const Layout& layout : {Layout{.dp = 2, .distributed_optimizer = true, .overlap = true},
                               Layout{.dp = 4, .zero_stage = 3}}) {
    const std::vector<Metrics> got = trained(flags, layout, name_of(layout));
    ASSERT_EQ(got.size(), want.size());
    for (size_t i = 0; i < want.size(); ++i) {
      const double loss = want[i].at("lm loss");
      EXPECT_NEAR(got[i].at("lm loss"), loss, 1e-3 * loss) << name_of(layout) << " " << i;
    }
  }
}

TEST_F(CudaLayoutTest, GatheringParametersInFp8ChangesNoBit) {
  const Flags delayed = wide_model(true)
                            .with("--bf16")
                            .with("--ffn-hidden-size", "192")
                            .with("--fp8-format", "hybrid");
  const auto expect_same = [&](const Flags& flags, const Layout& layout, const std::string& name) {
    const std::vector<Metrics> want = trained(flags, layout, name + "_wide");
    ASSERT_GE(want.size(), 20u) << name;
    expect_same_bits(trained(flags.with("--fp8-param-gather"), layout, name), want, name);
  };
  const Layout overlapped{.dp = 2, .distributed_optimizer = true, .overlap = true};
  expect_same(delayed.with("--overlap-param-gather"), overlapped, "overlapped");
  expect_same(delayed, {.dp = 4, .zero_stage = 2}, "stage2");
  expect_same(delayed.with("--fp8-recipe", "tensorwise"),
              {.tp = 2, .dp = 2, .sequence_parallel = true, .distributed_optimizer = true},
              "tensorwise");
}

// Roundings to three bits differ where sums do.
TEST_F(CudaLayoutTest, ExpertsInFp8TrainAsOnACpu) {
  const Flags flags = wide_model(true)
                          .with("--bf16")
                          .with("--ffn-hidden-size", "192")
                          .with("--fp8-format", "hybrid")
                          .with("--num-experts", "8")
                          .with("--moe-ffn-hidden-size", "96")
                          .with("--eval-iters", "0");
  const std::vector<Metrics> want = trained(flags.with("--device", "cpu"), {}, "cpu");
  ASSERT_GE(want.size(), 20u);
  const auto expect_near = [&](const Flags& on_gpus, const Layout& layout,
                               const std::string& name) {
    const std::vector<Metrics> got = trained(on_gpus, layout, name);
    ASSERT_EQ(got.size(), want.size());
    for (size_t i = 0; i < want.size(); ++i) {
      const double loss = want[i].at("lm loss");
      EXPECT_NEAR(got[i].at("lm loss"), loss, 0.02 * loss) << name << ", iteration " << i;
    }
  };
  expect_near(flags, {}, "one");
  expect_near(flags.with("--expert-model-parallel-size", "2"),
              {.dp = 2, .distributed_optimizer = true}, "experts");
}

// Products are cut in pieces of at least 1024 rows.
TEST_F(CudaLayoutTest, ProductsByPiecesTrainAsOneRank) {
  for (const bool is_llama_style : {false, true}) {
    const Flags flags = wide_model(is_llama_style)
                            .with("--seq-length", "1024")
                            .with("--max-position-embeddings", "1024")
                            .with("--micro-batch-size", "4")
                            .with("--train-iters", "8");
    const std::string style = is_llama_style ? "llama_" : "gpt_";
    const std::vector<Metrics> want = trained(flags, {}, style + "one");
    for (const Layout& layout :
         {Layout{.tp = 2, .sequence_parallel = true}, Layout{.tp = 4, .sequence_parallel = true}}) {
      const std::string name = style + name_of(layout) + "_by_pieces";
      expect_equal(trained(flags.with("--tp-comm-overlap"), layout, name), want, name);
    }
  }
}

// Collectives of at least 256 KiB run beside the work of another microbatch.
TEST_F(CudaLayoutTest, TwoMicrobatchesAtATimeChangeNoBit) {
  const Flags fp32 = wide_model(true)
                         .with("--seq-length", "1024")
                         .with("--max-position-embeddings", "1024")
                         .with("--micro-batch-size", "4")
                         .with("--global-batch-size", "16")
                         .with("--train-iters", "8");
  for (const Flags& flags : {fp32, fp32.with("--bf16")}) {
    for (const Layout& layout :
         {Layout{.tp = 2, .sequence_parallel = true},
          Layout{.tp = 2, .dp = 2, .sequence_parallel = true, .distributed_optimizer = true},
          Layout{.cp = 2, .cp_comm_type = "a2a"}}) {
      const std::string name = name_of(layout);
      const std::vector<Metrics> want = trained(flags, layout, name);
      expect_same_bits(trained(flags.with("--overlap-microbatches"), layout, name + "_overlapped"),
                       want, name);
    }
  }
}

TEST_F(CudaLayoutTest, TwoRunsHaveTheSameBits) {
  const Layout layout{
      .tp = 2, .pp = 2, .dp = 2, .sequence_parallel = true, .distributed_optimizer = true};
  const Flags fp32 = wide_model(false);
  // Of a length that cuDNN's attention takes.
  const Flags bf16 =
      fp32.with("--bf16").with("--seq-length", "128").with("--max-position-embeddings", "128");
  const Flags by_pieces = bf16.with("--tp-comm-overlap")
                              .with("--seq-length", "1024")
                              .with("--max-position-embeddings", "1024")
                              .with("--micro-batch-size", "4");
  for (const Flags& flags : {fp32, bf16, by_pieces}) {
    EXPECT_EQ(trained(flags, layout, "first"), trained(flags, layout, "second"));
  }
}

// Both copy each other's memory and sum in the order of ranks.
TEST_F(CudaLayoutTest, ProcessesTrainWithTheBitsOfThreads) {
  if (num_cuda_devices() < 2) GTEST_SKIP() << "needs two GPUs: not run";
  const Flags flags = wide_model(false)
                          .with("--bf16")
                          .with("--seq-length", "1024")
                          .with("--max-position-embeddings", "1024")
                          .with("--micro-batch-size", "4")
                          .with("--train-iters", "8");
  const Layout layouts[] = {{.tp = 2},
                            {.tp = 2, .sequence_parallel = true},
                            {.pp = 2, .layers_a_chunk = 1},
                            {.dp = 2, .distributed_optimizer = true, .overlap = true},
                            {.cp = 2},
                            {.cp = 2, .cp_comm_type = "all_gather"},
                            {.cp = 2, .cp_comm_type = "a2a"}};
  const auto expect_same = [&](const Flags& run, const Layout& layout, const std::string& name) {
    const std::vector<Metrics> want = trained(run, layout, name);
    EXPECT_EQ(want.size(), 10u) << name;  // with two validations
    EXPECT_EQ(trained(run, layout, name + "_processes", "pretrain-gpt", "processes"), want) << name;
  };
  for (const Layout& layout : layouts) expect_same(flags, layout, name_of(layout));
  expect_same(flags.with("--tp-comm-overlap"), layouts[1], "by_pieces");
}

TEST_F(CudaLayoutTest, RanksThatShareAGpuAreToldOf) {
  const int ranks = num_cuda_devices() + 1;
  Words words = tiny_bench(ranks, {"--steps", "1", "--warmup", "0", "--device", "cuda"});
  const Outcome threads = run("launch", words);
  EXPECT_EQ(threads.exit_code, 0) << threads.err;
  EXPECT_THAT(threads.err, testing::HasSubstr(std::to_string(ranks) + " ranks share"));
  words.insert(words.begin(), {"--ranks", "processes"});
  const Outcome processes = run("launch", words);
  EXPECT_EQ(processes.exit_code, 2) << processes.err;
  EXPECT_THAT(processes.err, testing::HasSubstr("which only threads can share"));
}

}  // namespace
}  // namespace megatron::program

#include "megatron/device/stream.h"
#include "tests/program/exact_resume.h"

// On a GPU, with --deterministic-mode.
namespace megatron::program {
namespace {

class CudaResumeTest : public ExactResumeTest {
 protected:
  void SetUp() override {
    if (num_cuda_devices() == 0) GTEST_SKIP() << "no GPU: not run";
  }
  Flags gpu_flags() const {
    return golden_flags().with("--device", "cuda").with("--deterministic-mode");
  }
};

TEST_F(CudaResumeTest, Fp32) { expect_exact_resume(gpu_flags(), 10); }

// cuDNN's attention.
TEST_F(CudaResumeTest, Bf16) { expect_exact_resume(gpu_flags().with("--bf16"), 7); }

TEST_F(CudaResumeTest, Bf16WithDropout) {
  expect_exact_resume(with_dropout(gpu_flags()).with("--bf16"), 11);
}

TEST_F(CudaResumeTest, Fp16WhileOverflowing) { expect_exact_resume(gpu_flags().with("--fp16"), 7); }

TEST_F(CudaResumeTest, LlamaWithRecomputation) {
  expect_exact_resume(llama_style(gpu_flags())
                          .with("--bf16")
                          .with("--recompute-granularity", "full")
                          .with("--recompute-method", "uniform")
                          .with("--recompute-num-layers", "1"),
                      3);
}

TEST_F(CudaResumeTest, Fp8) { expect_exact_resume(in_fp8(gpu_flags()).with("--bf16"), 1); }

TEST_F(CudaResumeTest, Fp8Tensorwise) {
  expect_exact_resume(
      in_fp8(llama_style(gpu_flags())).with("--bf16").with("--fp8-recipe", "tensorwise"), 7);
}

TEST_F(CudaResumeTest, Fp8Blockwise) {
  expect_exact_resume(in_blocks(llama_style(gpu_flags())).with("--bf16"), 7);
}

// Sums on a GPU have fewer bits than the definition's on the CPU.
TEST_F(CudaResumeTest, Fp8TrainsAsOnTheCpu) {
  for (const bool has_blocks : {false, true}) {
    const auto losses = [&](const std::string& device) {
      const std::string file = device + (has_blocks ? "_blocks.jsonl" : ".jsonl");
      const Flags flags = (has_blocks ? in_blocks(golden_flags()) : in_fp8(golden_flags()))
                              .with("--bf16")
                              .with("--device", device)
                              .with("--metrics-jsonl", path(file).string());
      train(flags);
      return metrics_of(path(file));
    };
    const std::vector<Metrics> want = losses("cpu");
    const std::vector<Metrics> got = losses("cuda");
    ASSERT_EQ(got.size(), want.size());
    for (size_t i = 0; i < want.size(); ++i) {
      if (!want[i].contains("lm loss")) continue;
      EXPECT_NEAR(got[i].at("lm loss"), want[i].at("lm loss"), 2e-3 * want[i].at("lm loss")) << i;
    }
  }
}

// Each microbatch replayed, or queued op by op; of a length that every cuDNN takes without a copy
// from the host.
TEST_F(CudaResumeTest, TheGraphChangesNoBit) {
  const Flags basic =
      gpu_flags().with("--seq-length", "128").with("--max-position-embeddings", "128");
  for (const Flags& flags :
       {with_dropout(basic), with_dropout(basic).with("--bf16"), llama_style(basic).with("--bf16"),
        basic.with("--fp16"), in_fp8(basic).with("--bf16"), in_blocks(basic).with("--bf16")}) {
    const auto saved = [&](const std::string& name, const Flags& more) {
      const Outcome outcome = train(more.with("--save", path(name).string())
                                        .with("--save-interval", "1000")
                                        .with("--metrics-jsonl", path(name + ".jsonl").string()));
      EXPECT_EQ(outcome.out.find("replayed as one CUDA graph") != std::string::npos,
                name == "replayed");
    };
    saved("replayed", flags);
    saved("queued", flags.with("--no-cuda-graph"));
    EXPECT_EQ(metrics_of(path("replayed.jsonl")), metrics_of(path("queued.jsonl")));
    expect_identical(read_saved_run(iteration_in(path("replayed"), 20)),
                     read_saved_run(iteration_in(path("queued"), 20)));
    std::filesystem::remove_all(path("replayed"));
    std::filesystem::remove_all(path("queued"));
    std::filesystem::remove(path("replayed.jsonl"));
    std::filesystem::remove(path("queued.jsonl"));
  }
}

// Two microbatches an iteration; copies of layers' inputs are under way beside both passes.
TEST_F(CudaResumeTest, InputsOnTheHostChangeNoBit) {
  const Flags flags = with_dropout(gpu_flags())
                          .with("--bf16")
                          .with("--recompute-granularity", "full")
                          .with("--recompute-method", "uniform")
                          .with("--recompute-num-layers", "1");
  const auto trained = [&](const std::string& name, const Flags& more) {
    const Outcome outcome = train(more.with("--metrics-jsonl", path(name + ".jsonl").string()));
    EXPECT_EQ(outcome.out.find("without a CUDA graph, because of --checkpoint-in-cpu") !=
                  std::string::npos,
              name == "on_host");
    return metrics_of(path(name + ".jsonl"));
  };
  const std::vector<Metrics> want = trained("on_device", flags);
  EXPECT_EQ(trained("on_host", flags.with("--checkpoint-in-cpu")), want);
  EXPECT_GE(want.size(), 20U);
}

// The same of the activations of layers.
TEST_F(CudaResumeTest, ActivationsOnTheHostChangeNoBit) {
  const Flags flags = with_dropout(gpu_flags()).with("--bf16");
  const auto trained = [&](const std::string& name, const Flags& more) {
    const Outcome outcome = train(more.with("--metrics-jsonl", path(name + ".jsonl").string()));
    EXPECT_EQ(outcome.out.find("without a CUDA graph, because of --cpu-offloading-num-layers") !=
                  std::string::npos,
              name != "on_device");
    return metrics_of(path(name + ".jsonl"));
  };
  const std::vector<Metrics> want = trained("on_device", flags);
  EXPECT_GE(want.size(), 20U);
  const Flags offloaded = flags.with("--min-offloaded-tensor-size", "0");
  for (const char* num_layers : {"1", "2"}) {
    EXPECT_EQ(trained(num_layers, offloaded.with("--cpu-offloading-num-layers", num_layers)), want);
  }
}

TEST_F(CudaResumeTest, EqualRunsAreIdentical) {
  const auto losses = [&] {
    std::vector<std::string> lines;
    const Outcome outcome = train(with_dropout(gpu_flags()).with("--bf16"));
    for (const IterationText& one : iterations_of(outcome.out)) lines.push_back(one.line);
    return lines;
  };
  EXPECT_EQ(losses(), losses());
}

}  // namespace
}  // namespace megatron::program

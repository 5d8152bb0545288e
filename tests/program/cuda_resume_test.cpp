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

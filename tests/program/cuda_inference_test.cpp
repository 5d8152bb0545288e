#include "megatron/device/stream.h"
#include "tests/program/parallel_inference.h"

// Tensor-parallel ranks generate on GPUs what one GPU generates: with a GPU each through CUDA
// graphs, on a GPU that they share operation by operation.
namespace megatron::program {
namespace {

class CudaInferenceTest : public ParallelInferenceTest, public testing::WithParamInterface<bool> {
 protected:
  void SetUp() override {
    if (num_cuda_devices() == 0) GTEST_SKIP() << "no GPU: not run";
  }
  // A model that has learned something, with heads that attention over pages takes.
  std::filesystem::path model() const {
    const Flags gpt = golden_flags().with("--kv-channels", "16");
    const Flags flags = GetParam() ? llama_style(gpt).with("--num-query-groups", "2") : gpt;
    const std::filesystem::path saved = path("save");
    train(flags.with("--device", "cpu")
              .with("--eval-iters", "0")
              .with("--train-iters", "6")
              .with("--save", saved.string())
              .with("--save-interval", "20"));
    return saved;
  }
};

TEST_P(CudaInferenceTest, TensorParallelRanksGenerateAsOne) {
  const std::filesystem::path saved = model();
  expect_as_one_rank(saved, {{.tp = 2, .device = "cuda"}}, {.device = "cuda"});
  expect_many_texts_as_one_rank(saved, {.tp = 2, .device = "cuda"}, {.device = "cuda"});
}

INSTANTIATE_TEST_SUITE_P(Models, CudaInferenceTest, testing::Bool(),
                         [](const auto& one) { return one.param ? "Llama" : "Gpt"; });

}  // namespace
}  // namespace megatron::program

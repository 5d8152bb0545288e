#include "megatron/device/stream.h"
#include "tests/program/parallel_inference.h"

// Tensor-parallel ranks generate on GPUs what one GPU generates: with a GPU each through CUDA
// graphs, on a GPU that they share operation by operation.
namespace megatron::program {
namespace {

class CudaTextsTest : public ParallelInferenceTest {
 protected:
  void SetUp() override {
    if (num_cuda_devices() == 0) GTEST_SKIP() << "no GPU: not run";
  }
};
class CudaInferenceTest : public CudaTextsTest, public testing::WithParamInterface<const char*> {};

TEST_P(CudaInferenceTest, TensorParallelRanksGenerateAsOne) {
  expect_as_one_rank(golden("hf") / GetParam(), {{.tp = 2, .device = "cuda"}}, {.device = "cuda"});
}

INSTANTIATE_TEST_SUITE_P(Models, CudaInferenceTest,
                         testing::Values("gpt2", "llama-gqa", "bloom", "gpt-neox"),
                         [](const auto& one) {
                           std::string name = one.param;
                           std::replace(name.begin(), name.end(), '-', '_');
                           return name;
                         });

TEST_F(CudaTextsTest, ManyComeAndGo) {
  expect_many_texts_as_one_rank({.tp = 2, .device = "cuda"}, {.device = "cuda"});
}

}  // namespace
}  // namespace megatron::program

#include "megatron/models/gpt/gpt_task.h"

#include <gtest/gtest.h>

#include <cmath>
#include <memory>
#include <string>
#include <vector>

#include "megatron/core/error.h"
#include "megatron/models/gpt/gpt_model.h"
#include "megatron/run/device_choice.h"
#include "megatron/settings/training_args.h"
#include "megatron/training/training_state.h"
#include "tests/support/tensors.h"

namespace megatron::cli {
namespace {

constexpr int64_t kVocabulary = 1024;
constexpr int64_t kSeqLength = 512;
constexpr int64_t kBatch = 4;

// What the first microbatch of a run gives, on the CPU.
struct FirstMicrobatch {
  StreamOptions options;
  float loss = 0;
  Tensor gradients;
};

// Flags of how a GPU computes; without one the tests are skipped.
class GptTaskCudaTest : public testing::Test {
 protected:
  void SetUp() override {
    if (num_cuda_devices() == 0) GTEST_SKIP() << "no GPU: not run";
  }

  static FirstMicrobatch run(const std::vector<std::string>& more) {
    std::vector<std::string> words = {"--mock-data",
                                      "--num-layers=2",
                                      "--hidden-size=256",
                                      "--num-attention-heads=4",
                                      "--seq-length=" + std::to_string(kSeqLength),
                                      "--max-position-embeddings=" + std::to_string(kSeqLength),
                                      "--micro-batch-size=" + std::to_string(kBatch),
                                      "--train-iters=1",
                                      "--lr=1e-4",
                                      "--attention-dropout=0",
                                      "--hidden-dropout=0",
                                      "--tokenizer-type=NullTokenizer",
                                      "--vocab-size=" + std::to_string(kVocabulary - 1),
                                      "--device=cuda"};
    words.insert(words.end(), more.begin(), more.end());
    TrainingArgs args = parse_training_args(words, ModelKind::kGpt, 1);
    args.transformer.padded_vocab_size = kVocabulary;
    const std::unique_ptr<OwnedStream> stream = open_stream(args.training);
    GptTask task(args, nullptr);
    TrainingState state(args, task, {}, stream->get());
    state.parameters.zero_grads();
    const auto& model = dynamic_cast<const GptModel&>(*state.chunks.front());
    const Variable hidden = model.hidden_states(
        {.tokens = random_ids({kBatch, kSeqLength}, kVocabulary, 1)}, state.random);
    const Variable loss =
        token_loss(model, hidden,
                   {.labels = random_ids({kBatch, kSeqLength}, kVocabulary, 2),
                    .loss_mask = full({kBatch, kSeqLength}, 1, DType::kFloat32, {})});
    backward(loss);
    return {state.stream.options, static_cast<float>(loss.data().item()),
            state.parameters.buffers().front().grads.to(Stream{})};
  }
};

TEST_F(GptTaskCudaTest, DeterministicModeGivesTheSameGradientsEveryTime) {
  for (const char* dtype : {"--bf16", "--fp16"}) {
    const FirstMicrobatch first = run({dtype, "--deterministic-mode"});
    EXPECT_TRUE(first.options.is_deterministic);
    EXPECT_FALSE(first.options.searches_algorithms);
    for (int i = 0; i < 3; ++i) {
      const FirstMicrobatch again = run({dtype, "--deterministic-mode"});
      EXPECT_EQ(again.loss, first.loss) << dtype;
      expect_identical(again.gradients, first.gradients, dtype);
    }
  }
  EXPECT_FALSE(run({"--bf16"}).options.is_deterministic);
}

// TF32 keeps 10 bits of the factors where fp32 keeps 23: seen in the gradients, and within what the
// bits lost can do. Without the flag two runs give the same bits.
TEST_F(GptTaskCudaTest, Tf32OnlyWhereItIsAllowed) {
  const FirstMicrobatch exact = run({"--deterministic-mode"});
  const FirstMicrobatch rounded = run({"--deterministic-mode", "--allow-tf32"});
  EXPECT_FALSE(exact.options.allows_tf32);
  EXPECT_TRUE(rounded.options.allows_tf32);
  EXPECT_NEAR(rounded.loss, exact.loss, 1e-3 * exact.loss);
  expect_identical(run({"--deterministic-mode"}).gradients, exact.gradients, "fp32");

  double square = 0;
  double square_of_difference = 0;
  for (int64_t i = 0; i < exact.gradients.numel(); ++i) {
    const double want = element(exact.gradients, i);
    square += want * want;
    square_of_difference += std::pow(element(rounded.gradients, i) - want, 2);
  }
  const double error = std::sqrt(square_of_difference / square);
  EXPECT_GT(error, 1e-5) << "the products were not rounded to TF32";
  EXPECT_LT(error, 1e-2);
}

}  // namespace
}  // namespace megatron::cli

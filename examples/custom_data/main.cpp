// Trains a GPT on samples that the program computes: runs of numbers, each the one before plus a
// fixed step. The model learns to count.
#include <megatron/megatron.h>

#include <cstdint>
#include <cstdio>
#include <memory>
#include <span>

namespace {

using namespace megatron;

constexpr int64_t kVocabulary = 64;

// Sample i begins at i and counts in steps of 1, 2 or 3, modulo the vocabulary.
class CountingDataset final : public SampleDataset {
 public:
  CountingDataset(int64_t num_samples, int64_t seq_length)
      : num_samples_(num_samples), seq_length_(seq_length) {}

  int64_t num_samples() const override { return num_samples_; }
  int64_t sample_size() const override { return seq_length_ + 1; }  // labels are one step later
  void read(int64_t sample, std::span<int64_t> out) const override {
    const int64_t step = 1 + sample % 3;
    for (size_t i = 0; i < out.size(); ++i) {
      out[i] = (sample + static_cast<int64_t>(i) * step) % kVocabulary;
    }
  }

 private:
  const int64_t num_samples_;
  const int64_t seq_length_;
};

class CountingTask final : public GptTask {
 public:
  using GptTask::GptTask;

 protected:
  SplitDatasets open_datasets(const SampleCounts& sizes) const override {
    const auto made = [&](int64_t num_samples) {
      return std::make_shared<CountingDataset>(num_samples, tokens_per_sample());
    };
    return {.train = made(sizes.train), .valid = made(sizes.valid), .test = made(sizes.test)};
  }
};

RunConfig tiny_gpt() {
  RunConfig config;
  config.transformer.num_layers = 2;
  config.transformer.hidden_size = 32;
  config.transformer.num_attention_heads = 4;
  config.transformer.seq_length = 16;
  config.transformer.max_position_embeddings = 16;
  config.optimizer.lr = 1e-2;
  config.training.micro_batch_size = 8;
  config.training.train_iters = 50;
  config.training.log_interval = 10;
  config.training.eval_iters = 2;
  config.training.eval_interval = 25;
  config.data.mock_data = true;  // no files
  config.tokenizer = {.tokenizer_type = "NullTokenizer", .vocab_size = kVocabulary};
  return config;
}

}  // namespace

int main() {
  try {
    RunConfig config = resolved(tiny_gpt());
    const std::shared_ptr<const Tokenizer> tokenizer = open_tokenizer(config);
    CountingTask task(config, tokenizer);
    TrainingRun run(config, task);
    run.train();
  } catch (const Error& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 2;
  }
  return 0;
}

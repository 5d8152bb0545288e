// Trains a GPT on samples that the program computes: runs of numbers, each the one before plus a
// fixed step. The model learns to count.
#include <megatron/megatron.h>

#include <cstdint>
#include <cstdio>
#include <memory>
#include <span>

namespace {

using namespace megatron;

constexpr int kVocabulary = 64;

// Sample i begins at i and counts in steps of 1, 2 or 3, modulo the vocabulary.
class CountingDataset final : public SampleDataset {
 public:
  CountingDataset(int64_t num_samples, int64_t tokens)
      : num_samples_(num_samples), tokens_(tokens) {}

  int64_t num_samples() const override { return num_samples_; }
  int64_t sample_size() const override { return tokens_; }
  void read(int64_t sample, std::span<int64_t> out) const override {
    const int64_t step = 1 + sample % 3;
    for (size_t i = 0; i < out.size(); ++i) {
      out[i] = (sample + static_cast<int64_t>(i) * step) % kVocabulary;
    }
  }

 private:
  const int64_t num_samples_;
  const int64_t tokens_;
};

class CountingTask final : public api::Task {
 public:
  std::shared_ptr<const SampleDataset> samples(Split, int64_t num_samples,
                                               int64_t tokens) const override {
    return std::make_shared<CountingDataset>(num_samples, tokens);
  }
};

}  // namespace

int main() {
  try {
    const CountingTask task;
    api::Trainer trainer({{"num-layers", 2},
                          {"hidden-size", 32},
                          {"num-attention-heads", 4},
                          {"seq-length", 16},
                          {"max-position-embeddings", 16},
                          {"micro-batch-size", 8},
                          {"train-iters", 50},
                          {"lr", 1e-2},
                          {"log-interval", 10},
                          {"eval-iters", 2},
                          {"eval-interval", 25},
                          {"mock-data", true},  // no files
                          {"tokenizer-type", "NullTokenizer"},
                          {"vocab-size", kVocabulary}},
                         task);
    trainer.train();
  } catch (const Error& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 2;
  }
  return 0;
}

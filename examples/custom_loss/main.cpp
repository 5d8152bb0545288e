// Trains a GPT on a loss of its own: samples that contain key tokens count more. It is the loss of
// the Accelerate documentation's "custom train step".
//
//   loss = mean over samples of (1 + alpha * key tokens of the sample) * mean loss of its tokens
#include <megatron/megatron.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <string>
#include <utility>
#include <vector>

namespace {

using namespace megatron;

class KeyTokenTask final : public api::Task {
 public:
  KeyTokenTask(std::vector<int64_t> key_tokens, float alpha)
      : key_tokens_(std::move(key_tokens)), alpha_(alpha) {}

  // The loss is sum(loss_mask * token losses) / loss_divisor: the weight of a sample goes into the
  // weights of its tokens.
  void adjust_batch(GptBatch& batch, Split) const override {
    const auto length = static_cast<size_t>(batch.seq_length);
    for (size_t begin = 0; begin < batch.tokens.size(); begin += length) {
      float key_tokens = 0;
      float counted = 0;
      for (size_t i = begin; i < begin + length; ++i) {
        if (is_key(batch.tokens[i])) key_tokens += 1;
        counted += batch.loss_mask[i];
      }
      const float weight = (1 + alpha_ * key_tokens) / std::max(counted, 1.0F);
      for (size_t i = begin; i < begin + length; ++i) batch.loss_mask[i] *= weight;
    }
    batch.loss_divisor = static_cast<float>(batch.micro_batch_size);
  }

  std::string loss_name() const override { return "key token loss"; }

 private:
  bool is_key(int64_t token) const {
    return std::find(key_tokens_.begin(), key_tokens_.end(), token) != key_tokens_.end();
  }

  const std::vector<int64_t> key_tokens_;
  const float alpha_;
};

}  // namespace

int main() {
  try {
    const KeyTokenTask task({7, 11, 13}, 0.5F);
    api::Trainer trainer({{"num-layers", 2},
                          {"hidden-size", 32},
                          {"num-attention-heads", 4},
                          {"seq-length", 32},
                          {"max-position-embeddings", 32},
                          {"micro-batch-size", 4},
                          {"train-iters", 10},
                          {"lr", 1e-2},
                          {"log-interval", 1},
                          {"eval-iters", 0},
                          {"mock-data", true},
                          {"tokenizer-type", "NullTokenizer"},
                          {"vocab-size", 100}},
                         task);
    trainer.train();
  } catch (const Error& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 2;
  }
  return 0;
}

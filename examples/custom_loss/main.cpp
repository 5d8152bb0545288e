// Trains a GPT on a loss of its own: samples that contain key tokens count more. It is the loss of
// the Accelerate documentation's "custom train step".
//
//   loss = mean over samples of (1 + alpha * key tokens of the sample) * mean loss of its tokens
#include <megatron/megatron.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <memory>
#include <utility>
#include <vector>

namespace {

using namespace megatron;

class KeyTokenTask final : public GptTask {
 public:
  KeyTokenTask(const RunConfig& config, std::shared_ptr<const Tokenizer> tokenizer,
               std::vector<int64_t> key_tokens, float alpha)
      : GptTask(config, std::move(tokenizer)), key_tokens_(std::move(key_tokens)), alpha_(alpha) {}

 protected:
  // The loss of a GPT is sum(loss_mask * token losses) / loss_divisor: the weight of a sample goes
  // into the weights of its tokens.
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

  // The same loss as that of a GPT, under another name in the log.
  MicrobatchOutput loss(const GptModel& model, const Variable& hidden,
                        const GptTargets& targets) const override {
    MicrobatchOutput output = GptTask::loss(model, hidden, targets);
    output.logged.front().first = "key token loss";
    return output;
  }

 private:
  bool is_key(int64_t token) const {
    return std::find(key_tokens_.begin(), key_tokens_.end(), token) != key_tokens_.end();
  }

  const std::vector<int64_t> key_tokens_;
  const float alpha_;
};

RunConfig tiny_gpt() {
  RunConfig config;
  config.transformer.num_layers = 2;
  config.transformer.hidden_size = 32;
  config.transformer.num_attention_heads = 4;
  config.transformer.seq_length = 32;
  config.transformer.max_position_embeddings = 32;
  config.optimizer.lr = 1e-2;
  config.training.micro_batch_size = 4;
  config.training.train_iters = 10;
  config.training.log_interval = 1;
  config.training.eval_iters = 0;
  config.data.mock_data = true;
  config.tokenizer = {.tokenizer_type = "NullTokenizer", .vocab_size = 100};
  return config;
}

}  // namespace

int main() {
  try {
    RunConfig config = resolved(tiny_gpt());
    const std::shared_ptr<const Tokenizer> tokenizer = open_tokenizer(config);
    KeyTokenTask task(config, tokenizer, {7, 11, 13}, 0.5F);
    TrainingRun run(config, task);
    run.train();
  } catch (const Error& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 2;
  }
  return 0;
}

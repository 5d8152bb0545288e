// A train step in a shared library: samples with key tokens count more. It is the loss of the
// Accelerate documentation's "custom train step", for any command that trains a GPT:
//
//   megatron pretrain-gpt --train-step libkey_tokens.so --train-step-args alpha=0.5 key_tokens=7,11
//
//   loss = mean over samples of (1 + alpha * key tokens of the sample) * mean loss of its tokens
//
// With embedding_lr=0.1 the word embeddings learn at a tenth of the learning rate and have no
// weight decay: an optimizer group of their own.
#include <megatron/internals.h>

#include <algorithm>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

namespace {

using namespace megatron;

// `Base` is GptTask, which pretrain-gpt trains, or FinetuneTask, which finetune trains.
template <class Base>
class KeyTokenTask final : public Base {
 public:
  template <class... BaseArguments>
  explicit KeyTokenTask(const TrainStepArgs& args, BaseArguments&&... base)
      : Base(std::forward<BaseArguments>(base)...),
        key_tokens_(args.integers("key_tokens", {})),
        alpha_(static_cast<float>(args.number("alpha", 1.0))),
        embedding_lr_(args.number("embedding_lr", 1.0)) {}

  void adjust_parameter(OptimizedParameter& parameter) const override {
    if (parameter.name.find("word_embeddings") == std::string::npos) return;
    parameter.lr_mult = embedding_lr_;
    if (embedding_lr_ != 1.0) parameter.has_weight_decay = false;
  }

 protected:
  // The loss of a GPT is sum(loss_mask * token losses) / loss_divisor: the weight of a sample goes
  // into the weights of its tokens. Evaluations keep the plain loss.
  void adjust_batch(GptBatch& batch, Split split) const override {
    Base::adjust_batch(batch, split);
    if (split != Split::kTrain) return;
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

 private:
  bool is_key(int64_t token) const {
    return std::find(key_tokens_.begin(), key_tokens_.end(), token) != key_tokens_.end();
  }

  const std::vector<int64_t> key_tokens_;
  const float alpha_;
  const double embedding_lr_;
};

std::unique_ptr<TrainTask> make(const TrainStepParts& parts) {
  if (parts.finetune_data != nullptr) {
    return std::make_unique<KeyTokenTask<FinetuneTask>>(parts.args, parts.config, parts.tokenizer,
                                                        *parts.finetune_data);
  }
  return std::make_unique<KeyTokenTask<GptTask>>(parts.args, parts.config, parts.tokenizer);
}

}  // namespace

MEGATRON_TRAIN_STEP(make)

#pragma once

#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "megatron/data/masking.h"
#include "megatron/models/bert/bert_model.h"
#include "megatron/tokenizers/tokenizer.h"
#include "megatron/training/run_config.h"
#include "megatron/training/split_loaders.h"
#include "megatron/training/train_task.h"

namespace megatron {

// Masked words and the order of two parts, on data of sentences: what `megatron pretrain-bert`
// trains.
class BertTask : public TrainTask {
 public:
  // `config` is resolved and has padded_vocab_size. Throws ConfigError for what BERT has not, and
  // when the tokenizer has no [CLS], [SEP], [MASK] or [PAD]. Without a tokenizer a derived class
  // makes the data.
  BertTask(const RunConfig& config, std::shared_ptr<const Tokenizer> tokenizer);

  std::string_view model_name() const override { return "BERT"; }
  std::vector<const Module*> build_model(const ModelSite& site) override;
  std::vector<ChunkBoundary> boundaries() const override;
  void open_data(const Progress& progress) override;
  bool has_split(Split split) const override { return loaders_.has_split(split); }
  std::vector<std::string> groups(Split split) const override { return loaders_.groups(split); }
  void use_group(Split split, size_t group) override { loaders_.use_group(split, group); }
  Microbatch get_batch(Split split, int64_t chunk) override { return loaders_.next(split, chunk); }
  MicrobatchOutput forward_step(Split split, int64_t chunk, const Microbatch& batch,
                                std::span<const Variable> activations) override;
  // The loss of the order of sentences counts samples.
  bool weighs_tokens() const override { return !config_.transformer.bert_binary_head; }
  void use_loss_seed(const Tensor& seed) override { loss_seed_ = seed; }
  int64_t tokens_per_sample() const override { return config_.transformer.seq_length; }
  double flops(int64_t batch_size) const override;
  void close() override;
  std::map<std::string, ArgMap> recorded() const override;

 protected:
  // The samples of a microbatch, on the host.
  struct Samples {
    Tensor tokens;             // [b, s] int64
    Tensor types;              // [b, s] int64
    Tensor padding_mask;       // [b, s] bool
    Tensor labels;             // [b, s] int64
    Tensor loss_mask;          // [b, s] fp32
    Tensor is_random;          // [b] int64; undefined without the binary head
    Tensor loss_divisor = {};  // [] fp32; undefined: the tokens that count
  };
  // The part of it that a chunk of the model needs. has_gradient: a backward pass follows.
  Microbatch microbatch(const Samples& samples, int64_t chunk, bool has_gradient) const;

  const RunConfig& config() const { return config_; }
  // REQUIRES: the task has a tokenizer.
  const MaskingVocabulary& vocabulary() const { return *vocabulary_; }
  // Known once the model is built.
  const ParallelContext& parallel() const { return *parallel_; }
  size_t num_chunks() const { return models_.size(); }

 private:
  Samples read(const SampleDataset& dataset, const SampleGroup& group) const;

  const RunConfig config_;
  const std::shared_ptr<const Tokenizer> tokenizer_;
  std::shared_ptr<const MaskingVocabulary> vocabulary_;
  const ParallelContext* parallel_ = nullptr;
  RandomState* random_ = nullptr;
  std::vector<std::unique_ptr<const BertModel>> models_;  // by chunk of this rank
  std::vector<RowIds> positions_;  // by chunk: of every microbatch, on the model's device
  Tensor sample_weights_;          // ones, likewise
  Tensor loss_seed_;
  SplitLoaders loaders_;
};

}  // namespace megatron

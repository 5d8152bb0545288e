#pragma once

#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "megatron/data/masking.h"
#include "megatron/models/t5/t5_model.h"
#include "megatron/tokenizers/tokenizer.h"
#include "megatron/training/run_config.h"
#include "megatron/training/split_loaders.h"
#include "megatron/training/train_task.h"

namespace megatron {

// Spans of text that sentinels stand for, on data of sentences: what `megatron pretrain-t5` trains.
class T5Task : public TrainTask {
 public:
  // `config` is resolved and has padded_vocab_size. Throws ConfigError for what T5 has not, and
  // when the tokenizer has no padding, no end or no sentinels. Without a tokenizer a derived class
  // makes the data.
  T5Task(const RunConfig& config, std::shared_ptr<const Tokenizer> tokenizer);

  std::string_view model_name() const override { return "T5"; }
  std::vector<const Module*> build_model(const ModelSite& site) override;
  std::vector<ChunkBoundary> boundaries() const override;
  void open_data(const Progress& progress) override;
  bool has_split(Split split) const override { return loaders_.has_split(split); }
  std::vector<std::string> groups(Split split) const override { return loaders_.groups(split); }
  void use_group(Split split, size_t group) override { loaders_.use_group(split, group); }
  Microbatch get_batch(Split split, int64_t chunk) override { return loaders_.next(split, chunk); }
  MicrobatchOutput forward_step(Split split, int64_t chunk, const Microbatch& batch,
                                std::span<const Variable> activations) override;
  bool weighs_tokens() const override { return true; }
  void use_loss_seed(const Tensor& seed) override { loss_seed_ = seed; }
  int64_t tokens_per_sample() const override;
  double flops(int64_t batch_size) const override;
  void close() override;
  std::map<std::string, ArgMap> recorded() const override;

 protected:
  // The samples of a microbatch, on the host.
  struct Samples {
    Tensor encoder_tokens;        // [b, se] int64
    Tensor encoder_padding_mask;  // [b, se] bool
    Tensor decoder_tokens;        // [b, sd] int64
    Tensor labels;                // [b, sd] int64
    Tensor loss_mask;             // [b, sd] fp32
    Tensor loss_divisor = {};     // [] fp32; undefined: the tokens that count
  };
  // The part of it that this stage needs. has_gradient: a backward pass follows.
  Microbatch microbatch(const Samples& samples, bool has_gradient) const;

  const RunConfig& config() const { return config_; }
  // Known once the model is built.
  const ParallelContext& parallel() const { return *parallel_; }

 private:
  Samples read(const SampleDataset& dataset, const SampleGroup& group) const;
  // 0, 1, .. for every sample, on the model's device.
  RowIds positions(int64_t length) const;

  const RunConfig config_;
  const std::shared_ptr<const Tokenizer> tokenizer_;
  std::shared_ptr<const MaskingVocabulary> vocabulary_;
  const ParallelContext* parallel_ = nullptr;
  RandomState* random_ = nullptr;
  std::unique_ptr<const T5Model> model_;
  RowIds encoder_positions_;  // of every microbatch
  RowIds decoder_positions_;
  Tensor loss_seed_;
  SplitLoaders loaders_;
};

}  // namespace megatron

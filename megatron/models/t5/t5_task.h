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
  // when the tokenizer has no padding, no end or no sentinels.
  T5Task(const RunConfig& config, std::shared_ptr<const Tokenizer> tokenizer);

  std::string_view model_name() const override { return "T5"; }
  std::vector<const Module*> build_model(const ModelSite& site) override;
  std::vector<ChunkBoundary> boundaries() const override;
  void open_data(const Progress& progress) override;
  bool has_split(Split split) const override { return loaders_.has_split(split); }
  Microbatch get_batch(Split split, int64_t chunk) override { return loaders_.next(split, chunk); }
  MicrobatchOutput forward_step(Split split, int64_t chunk, const Microbatch& batch,
                                std::span<const Variable> activations) override;
  int64_t tokens_per_sample() const override;
  double flops(int64_t batch_size) const override;
  void close() override;
  std::map<std::string, ArgMap> recorded() const override;

 private:
  // This stage's part of a microbatch on the host.
  Microbatch microbatch(const SampleDataset& dataset, const SampleGroup& group,
                        bool is_trained) const;
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
  SplitLoaders loaders_;
};

}  // namespace megatron

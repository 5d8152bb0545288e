#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "megatron/data/split_datasets.h"
#include "megatron/models/model.h"
#include "megatron/tokenizers/tokenizer.h"
#include "megatron/training/run_config.h"
#include "megatron/training/split_loaders.h"
#include "megatron/training/train_task.h"

namespace megatron {

// A microbatch of texts and its targets.
struct TextMicrobatch {
  ModelInput input = {};
  TokenTargets targets = {};
  // Targets of each depth of ModelInput::future. Their divisors scale the means by
  // --mtp-loss-scaling-factor / --mtp-num-layers, so that they are terms of the model's loss.
  std::vector<TokenTargets> future_targets = {};

  std::vector<Tensor*> tensors();
};

// Trains a model of the config's kind. It builds the chunks of the model, reads the data ahead and
// runs the chunks; a derived class is an objective: it opens the datasets, makes microbatches of
// their samples, and computes the loss. A derived class calls close() in its destructor if
// prefetching threads use its members.
class ModelTask : public TrainTask {
 public:
  // `config` is resolved and has padded_vocab_size. The tokenizer may be null if neither the
  // derived class nor a checkpoint needs it.
  ModelTask(const RunConfig& config, std::shared_ptr<const Tokenizer> tokenizer);

  std::string_view model_name() const override;
  std::vector<const Module*> build_model(const ModelSite& site) override;
  void adjust_parameter(OptimizedParameter& parameter) const override;
  std::vector<ChunkBoundary> boundaries() const override;
  void open_data(const Progress& progress) override;
  bool has_split(Split split) const override { return loaders_.has_split(split); }
  std::vector<std::string> groups(Split split) const override { return loaders_.groups(split); }
  void use_group(Split split, size_t group) override { loaders_.use_group(split, group); }
  Microbatch get_batch(Split split, int64_t chunk) override { return loaders_.next(split, chunk); }
  bool may_overlap_microbatches() const override { return true; }
  MicrobatchOutput forward_step(Split split, int64_t chunk, const Microbatch& batch,
                                std::span<const Variable> activations) override;
  bool weighs_tokens() const override { return true; }
  void use_loss_seed(const Tensor& seed) override { loss_seed_ = seed; }
  void use_sequence_length(int64_t length) override { sequence_length_ = length; }
  int64_t tokens_per_sample() const override;
  double flops(int64_t batch_size) const override;
  void close() override;
  std::map<std::string, ArgMap> recorded() const override;

 protected:
  // This rank's chunks, in the order of the layers.
  virtual std::vector<std::unique_ptr<const Model>> make_chunks(const ModelSite& site) const;
  // Opens the datasets of the config, with at least the given numbers of samples.
  virtual SplitDatasets open_datasets(const SampleCounts& sizes) const = 0;
  // True if a chunk needs make_batch().
  virtual bool reads_data(int64_t /*chunk*/) const { return true; }
  // Makes a chunk's part of a microbatch, on the host. Several threads call it.
  virtual TextMicrobatch make_batch(const SampleDataset& dataset, const SampleGroup& group,
                                    Split split, int64_t chunk) const = 0;
  // The loss of a microbatch, on the last chunk of the model, and its part of the log.
  virtual MicrobatchOutput loss(const Model& model, const Variable& hidden,
                                const TokenTargets& targets) const;

  // The part of a microbatch of whole texts, on the host, that a chunk needs, checked and prepared
  // for a backward pass if the split is trained: tokens where they are embedded, targets at the
  // head. Throws ShapeError naming an id that the model has no row for.
  TextMicrobatch part_of(TextMicrobatch whole, int64_t chunk, Split split) const;
  // Adds the losses of multi-token prediction, whose hidden states come first.
  void add_future_losses(MicrobatchOutput& output, const Model& model,
                         std::span<const Variable> states,
                         std::span<const TokenTargets> targets) const;
  // Runs a chunk on the inputs of such a part, on the model's device.
  Activations forward(ModelInput input, int64_t chunk, std::span<const Variable> activations) const;

  const RunConfig& config() const { return config_; }
  // REQUIRES: the task has one.
  const Tokenizer& tokenizer() const { return *tokenizer_; }
  // Known once the model is built.
  const ParallelContext& parallel() const { return *parallel_; }
  RandomState& random() const { return *random_; }
  const Model& model(int64_t chunk) const { return *models_[static_cast<size_t>(chunk)]; }

 private:
  // 0 .. length - 1 for each row, on the model's device; undefined without a table of positions.
  RowIds positions(int64_t rows, int64_t length, Stream stream) const;

  const RunConfig config_;
  const std::shared_ptr<const Tokenizer> tokenizer_;
  const ParallelContext* parallel_ = nullptr;
  RandomState* random_ = nullptr;
  std::vector<std::unique_ptr<const Model>> models_;  // by chunk of this rank
  ModelInput positions_;                              // default position ids of microbatches
  int64_t sequence_length_;                           // of the next microbatches
  Tensor loss_seed_;
  SplitLoaders loaders_;
};

}  // namespace megatron

#pragma once

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "megatron/models/gpt/gpt_step.h"
#include "megatron/tokenizers/tokenizer.h"
#include "megatron/training/curriculum.h"
#include "megatron/training/run_config.h"
#include "megatron/training/split_loaders.h"
#include "megatron/training/train_task.h"

namespace megatron {

// Next-token prediction on .bin/.idx data: what `megatron pretrain-gpt` trains. Derive from it to
// change the data or the loss.
class GptTask : public TrainTask {
 public:
  // `config` is resolved and has padded_vocab_size.
  GptTask(const RunConfig& config, std::shared_ptr<const Tokenizer> tokenizer);

  std::string_view model_name() const override { return "GPT"; }
  std::vector<const Module*> build_model(const ModelSite& site) override;
  std::vector<ChunkBoundary> boundaries() const override;
  void open_data(const Progress& progress) override;
  bool has_split(Split split) const override { return loaders_.has_split(split); }
  std::vector<std::string> groups(Split split) const override { return loaders_.groups(split); }
  void use_group(Split split, size_t group) override { loaders_.use_group(split, group); }
  Microbatch get_batch(Split split, int64_t chunk) override { return loaders_.next(split, chunk); }
  MicrobatchOutput forward_step(Split split, int64_t chunk, const Microbatch& batch,
                                std::span<const Variable> activations) override;
  bool weighs_tokens() const override;
  void use_loss_seed(const Tensor& seed) override { loss_seed_ = seed; }
  void use_sequence_length(int64_t length) override { sequence_length_ = length; }
  int64_t tokens_per_sample() const override { return sequence_length_; }
  double flops(int64_t batch_size) const override;
  void close() override;
  std::map<std::string, ArgMap> recorded() const override;

 protected:
  // Opens the datasets that the config names, with at least so many samples.
  virtual SplitDatasets open_datasets(const SampleCounts& sizes) const;
  // Numbers behind the text in each sample, which GptBatch has as neighbor_tokens.
  virtual int64_t trailing_ids_per_sample() const;
  // Changes a microbatch of the split that was just read: its labels, the weights of its tokens in
  // the loss. Runs on the threads that read ahead.
  virtual void adjust_batch(GptBatch& batch, Split split) const;
  // The loss of a microbatch, on the last chunk of the model, and what the log shows of it.
  virtual MicrobatchOutput loss(const GptModel& model, const Variable& hidden,
                                const GptTargets& targets) const;

  const RunConfig& config() const { return config_; }
  const Tokenizer& tokenizer() const { return *tokenizer_; }
  // Known once the model is built.
  const ParallelContext& parallel() const { return *parallel_; }
  const GptStep& step(int64_t chunk) const { return *steps_[static_cast<size_t>(chunk)]; }

 private:
  // Applies the curriculum to a training microbatch of a run that began at `begin`.
  void shorten(GptBatch& batch, const Progress& begin) const;

  const RunConfig config_;
  const std::shared_ptr<const Tokenizer> tokenizer_;
  const ParallelContext* parallel_ = nullptr;
  std::vector<std::unique_ptr<const GptModel>> models_;  // by chunk of this rank
  std::vector<std::unique_ptr<const GptStep>> steps_;    // by chunk
  int64_t sequence_length_;                              // of the next microbatches
  std::optional<const Curriculum> curriculum_;
  Tensor loss_seed_;
  SplitLoaders loaders_;  // its threads use steps_
};

}  // namespace megatron

#pragma once

#include <cstdint>
#include <memory>
#include <span>

#include "megatron/api/given_batch.h"
#include "megatron/api/task_loss.h"
#include "megatron/models/gpt/gpt_task.h"
#include "megatron/task.h"
#include "megatron/trainer.h"

namespace megatron::api {

// A GPT's task with the changes of a Task, and with batches of the caller.
class ChangedGptTask final : public GptTask, public TakesBatches {
 public:
  ChangedGptTask(const RunConfig& config, std::shared_ptr<const Tokenizer> tokenizer,
                 const Task& changes)
      : GptTask(config, std::move(tokenizer)), changes_(changes) {}
  ~ChangedGptTask() override { close(); }

  void take(const Batch& batch, int64_t rows) override;
  void release() override;
  void adjust_parameter(OptimizedParameter& parameter) const override;
  Microbatch get_batch(Split split, int64_t chunk) override;
  MicrobatchOutput forward_step(Split split, int64_t chunk, const Microbatch& batch,
                                std::span<const Variable> activations) override;
  bool weighs_tokens() const override;
  bool may_overlap_microbatches() const override { return false; }

 protected:
  SplitDatasets open_datasets(const SampleCounts& sizes) const override;
  void adjust_batch(GptBatch& batch, Split split) const override;
  TextMicrobatch make_batch(const SampleDataset& dataset, const SampleGroup& group, Split split,
                            int64_t chunk) const override;
  MicrobatchOutput loss(const megatron::Model& model, const Variable& hidden,
                        const TokenTargets& targets) const override;

 private:
  const Task& changes_;
  std::unique_ptr<const SampleDataset> given_;
  std::span<const float> given_mask_;
  std::span<const int64_t> given_labels_;
  NextRows next_rows_;
  RunningMicrobatch running_;
};

}  // namespace megatron::api

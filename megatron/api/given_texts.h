#pragma once

#include <memory>
#include <vector>

#include "megatron/api/given_batch.h"
#include "megatron/api/task_loss.h"
#include "megatron/models/bert/bert_heads.h"
#include "megatron/models/bert/bert_task.h"
#include "megatron/models/t5/t5_task.h"
#include "megatron/task.h"

// BERT and T5 with batches of the caller. With --mock-data these are their only data.
namespace megatron::api {

// The heads of pre-training, or a classifier.
class GivenBertTask final : public BertTask, public TakesBatches {
 public:
  // Throws ConfigError, also for a classifier in a pipeline, and for a loss of the task's own.
  GivenBertTask(const RunConfig& config, std::shared_ptr<const Tokenizer> tokenizer,
                const Task& changes, BertHeads heads);
  ~GivenBertTask() override { close(); }

  void take(const Batch& batch, int64_t rows) override;
  void release() override { given_.reset(); }
  void adjust_parameter(OptimizedParameter& parameter) const override;
  Microbatch get_batch(Split split, int64_t chunk) override;
  bool weighs_tokens() const override;
  bool may_overlap_microbatches() const override { return false; }

 protected:
  std::vector<std::unique_ptr<const megatron::Model>> make_chunks(
      const ModelSite& site) const override;
  MicrobatchOutput loss(const megatron::Model& model, const Variable& hidden,
                        const TokenTargets& targets) const override;

 private:
  // The kind of the batch's labels for the classifier.
  LabelKind label_kind() const;
  // The labels of a classifier's rows.
  megatron::Tensor class_labels(int64_t first, int64_t count) const;

  const Task& changes_;
  const BertHeads heads_;
  std::unique_ptr<const Batch> given_;
  NextRows next_rows_;
};

class GivenT5Task final : public T5Task, public TakesBatches {
 public:
  GivenT5Task(const RunConfig& config, std::shared_ptr<const Tokenizer> tokenizer,
              const Task& changes);
  ~GivenT5Task() override { close(); }

  void take(const Batch& batch, int64_t rows) override;
  void release() override { given_.reset(); }
  void adjust_parameter(OptimizedParameter& parameter) const override;
  Microbatch get_batch(Split split, int64_t chunk) override;
  MicrobatchOutput forward_step(Split split, int64_t chunk, const Microbatch& batch,
                                std::span<const Variable> activations) override;
  bool weighs_tokens() const override;
  bool may_overlap_microbatches() const override { return false; }

 protected:
  MicrobatchOutput loss(const megatron::Model& model, const Variable& hidden,
                        const TokenTargets& targets) const override;

 private:
  const Task& changes_;
  std::unique_ptr<const Batch> given_;
  NextRows next_rows_;
  RunningMicrobatch running_;
};

}  // namespace megatron::api

#pragma once

#include <cstdint>
#include <optional>

#include "megatron/tasks/classification_task.h"

namespace megatron {

// Trains a text classifier in epochs, for `megatron finetune` of a BERT with --num_labels.
class FinetuneClassifierTask final : public ClassificationTask {
 public:
  // The means over the validation set, each sample once.
  struct Evaluation {
    double loss = 0;
    std::optional<double> accuracy;  // of classes
  };

  // `config` is resolved; fills the last batch of an epoch with its first samples.
  FinetuneClassifierTask(const RunConfig& config, std::shared_ptr<const Tokenizer> tokenizer,
                         Data data);

  // Evaluates, and prints "epoch 0: accuracy: 0.75 eval_loss: 0.5".
  void epoch_ended(const Progress& progress) override;
  // The same after a training that ended within an epoch. Every rank calls it.
  void evaluate_epoch(int64_t epoch);
  // The result of the last evaluation; empty before the first.
  const std::optional<Evaluation>& evaluation() const { return evaluation_; }

 private:
  std::optional<Evaluation> evaluation_;
};

}  // namespace megatron

#pragma once

#include <memory>
#include <optional>

#include "megatron/data/split.h"
#include "megatron/data/split_datasets.h"
#include "megatron/data/text_blocks.h"
#include "megatron/training/config.h"
#include "megatron/training/console_log.h"
#include "megatron/training/progress.h"

namespace megatron {

// The evaluations of a training in epochs.
class EpochReport {
 public:
  // For TrainTask::evaluated(): prints "epoch 0: perplexity: 12.5 eval_loss: 2.5" for the
  // validation set. REQUIRES: eval_interval is the number of iterations of an epoch.
  void evaluated(Split split, const TrainingConfig& config, const Progress& progress,
                 const NamedValues& losses);
  // exp of the last evaluation's loss; none before.
  std::optional<double> perplexity() const { return perplexity_; }

 private:
  std::optional<double> perplexity_;
};

// Training and validation in epochs: training shuffles each epoch, validation keeps the order. A
// set is null if it has no blocks or no samples are asked for. `options` are those of training but
// for num_samples; drops_last is for training alone.
SplitDatasets epoch_datasets(const std::shared_ptr<const TextBlocks>& train,
                             const std::shared_ptr<const TextBlocks>& valid,
                             const SampleCounts& sizes, EpochDataset::Options options);

// Iterations of an epoch of `num_samples` samples, the last batch of which is filled.
int64_t epoch_iterations(int64_t num_samples, int64_t global_batch_size);

// An evaluation takes eval_iters whole batches, which begin with each sample of the set once.
struct EvaluationSamples {
  EvaluationSamples(const TrainingConfig& config, int64_t num_samples)
      : taken(config.eval_iters * config.global_batch_size),
        counted(num_samples),
        microbatch(config.micro_batch_size) {}

  // Index in the dataset of a sample of the run.
  int64_t place(int64_t sample) const { return sample % taken; }
  // True if the sample counts; false if it repeats an earlier one to fill a batch.
  bool counts(int64_t sample) const { return place(sample) < counted; }
  // Divisor of a microbatch's sum. With it the mean over all microbatches is the mean over
  // `num_tokens`, the tokens of all samples that count.
  float divisor(int64_t num_tokens) const {
    return static_cast<float>(static_cast<double>(num_tokens) * static_cast<double>(microbatch) /
                              static_cast<double>(taken));
  }

  int64_t taken;
  int64_t counted;
  int64_t microbatch;
};

}  // namespace megatron

#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "megatron/data/split.h"
#include "megatron/training/config.h"

namespace megatron {

// The global batch size as a function of the samples consumed so far. A list of what to use from
// when on; a ramp-up keeps its formula.
class BatchSizeSchedule {
 public:
  static BatchSizeSchedule constant(int64_t batch_size);
  // From ramp.start up to `batch_size` in equal stretches of ramp.samples. Throws ConfigError
  // unless ramp.increment > 0 divides batch_size - ramp.start >= 0.
  static BatchSizeSchedule rampup(const RampupBatchSize& ramp, int64_t batch_size);
  // `entries` are "threshold:batch" in tokens and samples; a threshold may end in K, M, B or T
  // (1e3, 1e6, 1e9, 1e12), and entries are separated by spaces or commas. A batch size holds from
  // its threshold, in whole samples of seq_length tokens, until the next. Throws ConfigError unless
  // the first threshold is 0 and they rise strictly.
  static BatchSizeSchedule steps(const std::string& entries, int64_t seq_length);

  int64_t at(int64_t consumed_samples) const;
  int64_t final_batch_size() const { return final_batch_size_; }
  bool is_constant() const { return !ramp_ && steps_.empty(); }

  // Iterations until `train_samples` samples are consumed. A final incomplete batch is not trained
  // on, except by a step schedule. A ramp-up is gone through to its end, even if it is longer.
  int64_t train_iters(int64_t train_samples) const;
  // Compat: Megatron-DeepSpeed takes back the iterations that a ramp-up's samples beyond
  // `train_samples` would fill at the final batch size: 2 2 1000 up to 16 with 100 samples is 129
  // iterations, not 187.
  int64_t train_iters_as_deepspeed(int64_t train_samples) const;
  // Samples that this many iterations from the start consume.
  int64_t samples_of(int64_t iterations) const;

 private:
  struct Step {
    int64_t from_samples;
    int64_t batch_size;
  };

  int64_t final_batch_size_ = 0;
  // Iterations and samples until the ramp-up is over.
  struct Ramp {
    int64_t iterations = 0;
    int64_t consumed = 0;
  };
  Ramp whole_ramp() const;

  std::optional<RampupBatchSize> ramp_;
  std::vector<Step> steps_;
};

// How many microbatches the current iteration has. Data-parallel ranks agree on it because it
// depends on consumed samples alone.
class MicrobatchCalculator {
 public:
  // decrease_if_needed: a batch size that micro_batch_size * data_parallel_size does not divide is
  // rounded down to the next one that it does, instead of being an error.
  MicrobatchCalculator(BatchSizeSchedule schedule, int64_t micro_batch_size,
                       int64_t data_parallel_size, bool decrease_if_needed = false);

  // Takes the batch size that is due after `consumed_samples`. With `check`, throws ConfigError
  // when micro_batch_size * data_parallel_size does not divide it.
  void update(int64_t consumed_samples, bool check);

  int64_t num_microbatches() const { return num_microbatches_; }
  // Samples of the current iteration.
  int64_t global_batch_size() const { return num_microbatches_ * micro_times_dp_; }
  // Microbatches of the final batch size: evaluation always uses it.
  int64_t final_num_microbatches() const { return schedule_.final_batch_size() / micro_times_dp_; }
  const BatchSizeSchedule& schedule() const { return schedule_; }

 private:
  BatchSizeSchedule schedule_;
  int64_t micro_times_dp_;
  bool decrease_if_needed_;
  int64_t num_microbatches_ = 0;
};

// The schedule and calculator of the flags.
BatchSizeSchedule batch_size_schedule_of(const TrainingConfig& config);
MicrobatchCalculator make_microbatch_calculator(const TrainingConfig& config,
                                                int64_t data_parallel_size);
// train_iters, or what it is in terms of train_samples.
int64_t train_iters_of(const TrainingConfig& config);

// Samples that the three datasets must at least serve: the whole training, (train_iters /
// eval_interval + 1) validations and one test.
SampleCounts dataset_sizes_of(const TrainingConfig& config);

// The counters of a checkpoint that has none: every iteration so far had the full batch size.
struct ConsumedSamples {
  int64_t train = 0;
  int64_t valid = 0;
};
ConsumedSamples consumed_at_iteration(const TrainingConfig& config, int64_t iteration);

}  // namespace megatron

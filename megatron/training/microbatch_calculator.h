#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "megatron/data/split.h"
#include "megatron/training/config.h"

namespace megatron {

// The global batch size as a function of the samples consumed so far: a list of steps, or the
// formula of a ramp-up.
class BatchSizeSchedule {
 public:
  static BatchSizeSchedule constant(int64_t batch_size);
  // From ramp.start to `batch_size` in equal intervals of ramp.samples. Throws ConfigError
  // unless ramp.increment > 0 divides batch_size - ramp.start >= 0.
  static BatchSizeSchedule rampup(const RampupBatchSize& ramp, int64_t batch_size);
  // `entries` are "threshold:batch" in tokens and samples; a threshold may end in K, M, B or T
  // (1e3, 1e6, 1e9, 1e12), and entries are separated by spaces or commas. A batch size holds from
  // its threshold, in whole samples of seq_length tokens, to the next one. Throws ConfigError
  // unless the first threshold is 0 and thresholds rise strictly.
  static BatchSizeSchedule steps(const std::string& entries, int64_t seq_length);

  int64_t at(int64_t consumed_samples) const;
  int64_t final_batch_size() const { return final_batch_size_; }
  bool is_constant() const { return !ramp_ && steps_.empty(); }

  // Iterations until `train_samples` samples are consumed. A final incomplete batch is not trained
  // on, except by a step schedule. A ramp-up always runs to its end, even if it is longer.
  int64_t train_iters(int64_t train_samples) const;
  // Compat: Megatron-DeepSpeed subtracts the iterations that a ramp-up's samples beyond
  // `train_samples` would fill at the final batch size: 2 2 1000 up to 16 with 100 samples is 129
  // iterations, not 187.
  int64_t train_iters_as_deepspeed(int64_t train_samples) const;
  // Samples consumed by this many iterations from the start.
  int64_t samples_of(int64_t iterations) const;

 private:
  struct Step {
    int64_t from_samples;
    int64_t batch_size;
  };

  int64_t final_batch_size_ = 0;
  struct Ramp;
  Ramp whole_ramp() const;

  std::optional<RampupBatchSize> ramp_;
  std::vector<Step> steps_;
};

// The number of microbatches of the current iteration. It depends only on consumed samples, so all
// data-parallel ranks agree.
class MicrobatchCalculator {
 public:
  // decrease_if_needed: a batch size that is not a multiple of micro_batch_size *
  // data_parallel_size is rounded down to one, instead of being an error.
  MicrobatchCalculator(BatchSizeSchedule schedule, int64_t micro_batch_size,
                       int64_t data_parallel_size, bool decrease_if_needed = false);

  // Sets the batch size for `consumed_samples`. With `check`, throws ConfigError if it is not a
  // multiple of micro_batch_size * data_parallel_size.
  void update(int64_t consumed_samples, bool check);

  int64_t num_microbatches() const { return num_microbatches_; }
  // Samples of the current iteration.
  int64_t global_batch_size() const { return num_microbatches_ * micro_times_dp_; }
  // Microbatches of the final batch size, which evaluation always uses.
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
// train_iters, or the iterations of train_samples.
int64_t train_iters_of(const TrainingConfig& config);

// Samples that the three datasets must provide at least: the whole training, (train_iters /
// eval_interval + 1) validations and one test.
SampleCounts dataset_sizes_of(const TrainingConfig& config);

// Counters for a checkpoint without any: every iteration so far had the full batch size.
struct ConsumedSamples {
  int64_t train = 0;
  int64_t valid = 0;
};
ConsumedSamples consumed_at_iteration(const TrainingConfig& config, int64_t iteration);

}  // namespace megatron

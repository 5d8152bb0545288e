#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "megatron/data/config.h"

namespace megatron {

// The samples of one microbatch of one rank.
struct SampleGroup {
  std::vector<int64_t> indices;  // into the dataset, micro_batch_size of them
  // Position of the first one in the order of all samples of the run, over all ranks.
  int64_t first_sample = 0;
};

// The order in which one rank reads a dataset. Its state is the number of consumed samples.
class Sampler {
 public:
  virtual ~Sampler() = default;
  // The next microbatch; empty at the end of the data.
  virtual std::optional<SampleGroup> next() = 0;
};

struct SamplerOptions {
  DataloaderType type = DataloaderType::kSingle;
  int64_t num_samples = 0;       // of the dataset
  int64_t consumed_samples = 0;  // by all ranks so far
  int64_t micro_batch_size = 0;
  int64_t data_parallel_rank = 0;
  int64_t data_parallel_size = 1;
  bool data_sharding = true;  // kCyclic: each rank stays in its own part of the data
};

// kSingle: dataset order, once. Of every micro_batch_size * data_parallel_size samples (a lot) each
// rank takes its micro_batch_size in rank order; a last incomplete lot is dropped. kCyclic: a new
// random order in each epoch, for ever; an epoch is the largest number of complete lots. Throws
// ConfigError if the dataset has nothing (left) to read, or if consumed_samples is not a number of
// whole lots (kCyclic).
std::unique_ptr<Sampler> make_sampler(const SamplerOptions& options);

}  // namespace megatron

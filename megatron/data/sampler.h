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
  // Position of the first one in the global order of samples over all ranks.
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
  bool data_sharding = true;  // kCyclic: each rank samples from its own shard of the data
};

// kSingle: dataset order, once. From every micro_batch_size * data_parallel_size samples (a lot)
// each rank takes micro_batch_size in rank order; an incomplete last lot is dropped. kCyclic:
// endless, with a new random order in each epoch; an epoch has as many complete lots as possible.
// Throws ConfigError if no sample is left, or (kCyclic) if consumed_samples is not a multiple of
// the lot.
std::unique_ptr<Sampler> make_sampler(const SamplerOptions& options);

}  // namespace megatron

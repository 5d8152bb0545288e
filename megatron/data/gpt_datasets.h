#pragma once

#include <memory>

#include "megatron/data/config.h"
#include "megatron/data/gpt_dataset.h"
#include "megatron/data/sample_dataset.h"
#include "megatron/data/split.h"
#include "megatron/tokenizers/tokenizer.h"

namespace megatron {

// The datasets of a run; null where a split has no data or no samples are asked for.
struct GptDatasets {
  std::shared_ptr<const SampleDataset> train;
  std::shared_ptr<const SampleDataset> valid;
  std::shared_ptr<const SampleDataset> test;
};

// Opens, splits, indexes and blends what the flags name, with the sample order of Megatron-LM
// core_r0.5.0. Indices come from the cache where it has them; let one rank of a host build first
// and the others find them there. Threads of one process share the result. Throws ConfigError,
// IoError, FormatError.
GptDatasets build_gpt_datasets(const DataConfig& config, const SampleCounts& samples,
                               int64_t seq_length, int64_t seed, const Tokenizer& tokenizer);

}  // namespace megatron

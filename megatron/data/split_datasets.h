#pragma once

#include <functional>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <vector>

#include "megatron/data/config.h"
#include "megatron/data/dataset_options.h"
#include "megatron/data/indexed_dataset.h"
#include "megatron/data/sample_dataset.h"
#include "megatron/data/split.h"
#include "megatron/tokenizers/tokenizer.h"

namespace megatron {

// A dataset that is evaluated separately.
struct DatasetGroup {
  std::string name;  // empty: it is all data of its split
  std::shared_ptr<const SampleDataset> dataset;
};

// The datasets of a run; null if a split has no data or no samples are requested.
struct SplitDatasets {
  std::shared_ptr<const SampleDataset> train;
  std::shared_ptr<const SampleDataset> valid;
  std::shared_ptr<const SampleDataset> test;
  // Named groups, instead of valid and test.
  std::vector<DatasetGroup> valid_groups = {};
  std::vector<DatasetGroup> test_groups = {};

  // The groups of a split, or its dataset without a name; empty if it has no data.
  std::vector<DatasetGroup> of(Split split) const;
};

// Makes one class of dataset from an indexed dataset.
struct DatasetMaker {
  // Describes the index of the dataset at a prefix: dataset_description() and the class's own
  // settings.
  std::function<nlohmann::ordered_json(const std::string& prefix, Split split,
                                       std::optional<int64_t> num_samples,
                                       const DatasetOptions& options)>
      describe;
  // Makes the part `bounds` of the data, with at least num_samples samples; one epoch if empty.
  std::function<std::shared_ptr<const SampleDataset>(
      std::shared_ptr<const IndexedDataset> data, SplitBounds bounds, Split split,
      std::optional<int64_t> num_samples, const DatasetOptions& options)>
      make;
  // True if --split divides documents; false: sequences.
  bool is_split_by_document = false;
  // The split of the data; empty: that of --split.
  std::optional<SplitMatrix> split_matrix = {};
};

// Opens, splits, indexes and blends the data of the flags, with the sample order of Megatron-LM
// core_r0.5.0. Uses cached indices: let one rank per host build them first, so that the others find
// them. Threads of one process share the result. Throws ConfigError, IoError, FormatError.
SplitDatasets build_split_datasets(const DataConfig& config, const SampleCounts& samples,
                                   int64_t seq_length, int64_t seed, const Tokenizer& tokenizer,
                                   const DatasetMaker& maker);

// The same for GPT, including --mock-data.
SplitDatasets build_gpt_datasets(const DataConfig& config, const SampleCounts& samples,
                                 int64_t seq_length, int64_t seed, const Tokenizer& tokenizer);

}  // namespace megatron

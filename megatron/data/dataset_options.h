#pragma once

#include <cstdint>
#include <filesystem>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <string_view>

#include "megatron/data/index_cache.h"
#include "megatron/data/split.h"
#include "megatron/tokenizers/tokenizer.h"

namespace megatron {

// Common settings of all datasets of a run.
struct DatasetOptions {
  int64_t seq_length = 0;
  int64_t seed = 1234;
  int64_t vocab_size = 0;  // unpadded; a larger token in the data is an error
  TokenizerDescription tokenizer;
  // --split as given, and parsed; both empty if each split has its own paths.
  std::optional<std::string> split;
  std::optional<SplitMatrix> split_matrix;
  std::filesystem::path cache_path;  // empty: "<prefix>/cache/<class>_indices"
  CacheNaming cache_naming = CacheNaming::kCore05;
};

// The JSON that identifies the index of one split of one dataset; Megatron names cache files after
// it. `class_name` is Megatron's name of the dataset class; classes with own settings append them.
// An empty `num_samples` means one epoch.
nlohmann::ordered_json dataset_description(std::string_view class_name,
                                           const std::string& dataset_path, Split split,
                                           std::optional<int64_t> num_samples,
                                           const DatasetOptions& options);

// The cache of the index that `description` identifies.
IndexCache index_cache_of(const nlohmann::ordered_json& description,
                          const std::filesystem::path& dataset_path, Split split,
                          const DatasetOptions& options);

}  // namespace megatron

#pragma once

#include <array>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "megatron/data/config.h"

namespace megatron {

// One dataset or several to be dealt into one.
struct Blend {
  std::vector<std::string> prefixes;  // empty: nothing was given
  // One per prefix: dealt by these. Empty: a single prefix, read as it is, or several of which each
  // is read once and dealt by its size.
  std::vector<double> weights;
};

// Reads the items of --data-path: "prefix", "weight prefix weight prefix ..." or "prefix prefix
// ...". `flag` names the source in messages. Throws ConfigError.
Blend parse_blend(std::span<const std::string> items, std::string_view flag);

// Where the samples come from: one blend cut by --split, or a blend for each of train, valid, test.
struct DataPaths {
  Blend all;
  std::array<Blend, 3> per_split;
};

// Resolves --data-path, --train-data-path and its siblings, --data-args-path and
// --per-split-data-args-path. Throws ConfigError, IoError, FormatError.
DataPaths data_paths(const DataConfig& config);

}  // namespace megatron

#pragma once

#include <array>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "megatron/data/config.h"
#include "megatron/data/split.h"

namespace megatron {

// One dataset, or several to blend into one.
struct Blend {
  std::string name;                   // name of a weighted group; may be empty
  std::vector<std::string> prefixes;  // empty: nothing was given
  // One per prefix: the weights of the blend. Empty: a single prefix, read in order, or several,
  // each read once and weighted by its size.
  std::vector<double> weights;
  // One per prefix: the part of its documents to use. Empty: all, or as given by --split.
  std::vector<SplitBounds> parts;
};

// Reads the items of --data-path: "prefix", "weight prefix weight prefix ..." or "prefix prefix
// ...", or a group of Megatron-DeepSpeed's --train-weighted-split-paths, "NAME: weight start:end
// prefix, weight start:end prefix ...", in which start and end are fractions of the documents.
// `flag` names the source in messages. Throws ConfigError.
Blend parse_blend(std::span<const std::string> items, std::string_view flag);
// The same for evaluation data, which may have several groups with different names. Empty if there
// are no items.
std::vector<Blend> parse_blends(std::span<const std::string> items, std::string_view flag);

// Each dataset as a separate group, under one of the names, or that of its files:
// --multiple-validation-sets. Throws ConfigError for weights, groups, another number of names, and
// equal names.
std::vector<Blend> separate_blends(std::span<const std::string> items,
                                   std::span<const std::string> names, std::string_view flag);

// The sources of samples: one blend cut by --split, or the blends of train, valid and test.
// Training has one blend; each blend of the others is evaluated separately.
struct DataPaths {
  Blend all;
  std::array<std::vector<Blend>, 3> per_split;
};

// Resolves --data-path, --train-data-path and the like, --data-args-path and
// --per-split-data-args-path. Throws ConfigError, IoError, FormatError.
DataPaths data_paths(const DataConfig& config);

// Checks the paths before a run builds anything: one sentence for each invalid or missing path.
// `evaluates`: also checks validation and test data.
std::vector<std::string> path_problems(const DataConfig& config, bool evaluates);

}  // namespace megatron

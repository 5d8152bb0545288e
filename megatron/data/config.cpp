#include "megatron/data/config.h"

#include <fmt/format.h>

#include "megatron/core/error.h"
#include "megatron/data/split.h"

namespace megatron {

std::vector<std::string> problems(const DataConfig& c) {
  std::vector<std::string> found;
  const bool has_split_paths =
      !c.train_data_path.empty() || !c.valid_data_path.empty() || !c.test_data_path.empty();
  const int sources = int{!c.data_path.empty()} + int{has_split_paths} +
                      int{!c.data_args_path.empty()} + int{!c.per_split_data_args_path.empty()};
  if (sources > 1) {
    found.emplace_back(
        "--data-path, --train-data-path with its siblings, --data-args-path and "
        "--per-split-data-args-path exclude each other; give the blend of each split, or one blend "
        "and --split");
  }
  if (c.multiple_validation_sets && c.valid_data_path.empty() &&
      c.per_split_data_args_path.empty()) {
    found.emplace_back(
        "--multiple-validation-sets needs the datasets of validation; give --valid-data-path or "
        "--per-split-data-args-path");
  }
  if (!c.multiple_validation_sets && !c.validation_set_names.empty()) {
    found.emplace_back("--validation-set-names is for --multiple-validation-sets; give both");
  }
  if (c.mock_data && sources > 0) {
    found.emplace_back("--mock-data and data paths exclude each other; remove one of them");
  }
  for (const std::string& word : c.retro_neighbor_dirs) {
    const bool names_split =
        word.starts_with("train=") || word.starts_with("valid=") || word.starts_with("test=");
    if (names_split) continue;
    found.push_back(fmt::format(
        "--retro-neighbor-dirs {} names no split; write train=DIR, valid=DIR or test=DIR", word));
  }
  try {
    parse_split(c.split);
  } catch (const ConfigError& error) {
    found.emplace_back(error.what());
  }
  if (c.num_workers < 0) {
    found.push_back(fmt::format("--num-workers {} must be at least 0", c.num_workers));
  }
  for (const auto& [value, flag] :
       {std::pair{c.mask_prob, "--mask-prob"}, std::pair{c.short_seq_prob, "--short-seq-prob"}}) {
    if (!(value >= 0.0 && value <= 1.0)) {
      found.push_back(fmt::format("{} {} must be in [0, 1]", flag, value));
    }
  }
  return found;
}

}  // namespace megatron

#include "megatron/data/config.h"

#include <fmt/format.h>

namespace megatron {

std::vector<std::string> problems(const DataConfig& c) {
  std::vector<std::string> found;
  const bool has_split_paths =
      !c.train_data_path.empty() || !c.valid_data_path.empty() || !c.test_data_path.empty();
  if (!c.data_path.empty() && has_split_paths) {
    found.emplace_back(
        "--data-path and --train-data-path, --valid-data-path, --test-data-path exclude each "
        "other; give the blend of each split, or one blend and --split");
  }
  if (c.mock_data && (!c.data_path.empty() || has_split_paths)) {
    found.emplace_back("--mock-data and data paths exclude each other; remove one of them");
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

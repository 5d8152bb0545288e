#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <span>
#include <string>
#include <vector>

#include "megatron/data/index_cache.h"
#include "megatron/data/npy.h"
#include "megatron/data/sample_dataset.h"

namespace megatron {

// The dataset and the sample in it for each sample of a blend.
//   dataset_index         [size]
//   dataset_sample_index  [size]
struct BlendIndex {
  NpyArray<int16_t> dataset_index;
  NpyArray<int64_t> dataset_sample_index;
};

// Deals `size` samples so that after each of them every dataset is as near to its weight as
// possible: sample k comes from the dataset d with the largest weights[d] * max(k, 1) - (samples so
// far).
// REQUIRES: 1 <= weights.size() <= 32766.
BlendIndex build_blend_index(std::span<const double> weights, int64_t size);

// The weights divided by their sum, with numpy's rounding.
std::vector<double> normalised_weights(std::span<const double> weights);

// Several datasets dealt by weight into one.
class BlendedDataset final : public SampleDataset {
 public:
  struct Options {
    std::filesystem::path cache_path;  // empty: not cached
    CacheNaming cache_naming = CacheNaming::kCore05;
    Split split = Split::kTrain;
  };

  // `descriptions` has one entry per dataset. Throws ConfigError if a weight is not positive, if
  // there are more than 32766 datasets, or if a dataset has fewer samples than the blend takes from
  // it.
  BlendedDataset(std::vector<std::shared_ptr<const SampleDataset>> datasets,
                 const std::vector<nlohmann::ordered_json>& descriptions,
                 std::span<const double> weights, int64_t size, const Options& options);

  int64_t num_samples() const override { return index_.dataset_index.size(); }
  int64_t sample_size() const override { return datasets_.front()->sample_size(); }
  void read(int64_t sample, std::span<int64_t> out) const override;

  const BlendIndex& index() const { return index_; }
  // The text that identifies the blend; Megatron names files after its digest.
  const std::string& description() const { return description_; }

 private:
  void check_sizes() const;

  std::vector<std::shared_ptr<const SampleDataset>> datasets_;
  std::string description_;
  BlendIndex index_;
};

}  // namespace megatron

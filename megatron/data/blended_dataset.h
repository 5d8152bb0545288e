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

// For each sample of a blend, its dataset and the sample in that dataset.
//   dataset_index         [size]
//   dataset_sample_index  [size]
struct BlendIndex {
  NpyArray<int16_t> dataset_index;
  NpyArray<int64_t> dataset_sample_index;
};

// Interleaves datasets so that every prefix of the `size` samples matches the weights as closely as
// possible: sample k comes from the dataset d with the largest weights[d] * max(k, 1) - (samples of
// d so far). REQUIRES: 1 <= weights.size() <= 32766.
BlendIndex build_blend_index(std::span<const double> weights, int64_t size);

// The weights divided by their sum, with numpy's rounding.
std::vector<double> normalised_weights(std::span<const double> weights);

// Several datasets interleaved by weight.
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
  // Identifies the blend; Megatron names cache files after its digest.
  const std::string& description() const { return description_; }

 private:
  void check_sizes() const;

  std::vector<std::shared_ptr<const SampleDataset>> datasets_;
  std::string description_;
  BlendIndex index_;
};

}  // namespace megatron

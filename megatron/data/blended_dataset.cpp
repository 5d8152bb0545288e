#include "megatron/data/blended_dataset.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <utility>

#include "megatron/core/error.h"
#include "megatron/core/log.h"
#include "megatron/data/numpy_random.h"
#include "megatron/data/python_json.h"

namespace megatron {
namespace {

constexpr std::string_view kDatasetIndex = "dataset_index";
constexpr std::string_view kDatasetSampleIndex = "dataset_sample_index";
constexpr size_t kMaxDatasets = 32766;

bool load(BlendIndex& index, int64_t size, const IndexCache& cache) {
  if (!cache.holds({kDatasetIndex, kDatasetSampleIndex})) return false;
  index.dataset_index = NpyArray<int16_t>(NpyFile(cache.array_file(kDatasetIndex)));
  index.dataset_sample_index = NpyArray<int64_t>(NpyFile(cache.array_file(kDatasetSampleIndex)));
  if (index.dataset_index.size() == size && index.dataset_sample_index.size() == size) return true;
  warn(fmt::format("{}: cached blend has {} samples, expected {}; rebuilding it",
                   cache.description_file().string(), index.dataset_index.size(), size));
  return false;
}

}  // namespace

std::vector<double> normalised_weights(std::span<const double> weights) {
  const double sum = numpy_sum(weights);
  std::vector<double> normalised(weights.begin(), weights.end());
  for (double& weight : normalised) weight /= sum;
  return normalised;
}

BlendIndex build_blend_index(std::span<const double> weights, int64_t size) {
  invariant(!weights.empty() && weights.size() <= kMaxDatasets, "the datasets can be numbered");
  std::vector<int16_t> dataset_index(static_cast<size_t>(size));
  std::vector<int64_t> sample_index(static_cast<size_t>(size));
  std::vector<double> dealt(weights.size(), 0.0);  // counts, exact in double below 2^53
  for (int64_t k = 0; k < size; ++k) {
    const auto total = static_cast<double>(std::max<int64_t>(k, 1));
    size_t chosen = 0;
    double lag = weights[0] * total - dealt[0];
    for (size_t d = 1; d < weights.size(); ++d) {
      const double other = weights[d] * total - dealt[d];
      if (other > lag) {
        lag = other;
        chosen = d;
      }
    }
    dataset_index[static_cast<size_t>(k)] = static_cast<int16_t>(chosen);
    sample_index[static_cast<size_t>(k)] = static_cast<int64_t>(dealt[chosen]);
    dealt[chosen] += 1.0;
  }
  return {NpyArray<int16_t>(std::move(dataset_index), {size}),
          NpyArray<int64_t>(std::move(sample_index), {size})};
}

BlendedDataset::BlendedDataset(std::vector<std::shared_ptr<const SampleDataset>> datasets,
                               const std::vector<nlohmann::ordered_json>& descriptions,
                               std::span<const double> weights, int64_t size,
                               const Options& options)
    : datasets_(std::move(datasets)) {
  invariant(!datasets_.empty() && datasets_.size() == weights.size() &&
                datasets_.size() == descriptions.size(),
            "each dataset of a blend has a weight and a description");
  if (datasets_.size() > kMaxDatasets) {
    throw ConfigError(
        fmt::format("a blend has {} datasets, at most {} fit its index; merge some "
                    "with merge-datasets",
                    datasets_.size(), kMaxDatasets));
  }
  for (const double weight : weights) {
    if (!(weight > 0)) {
      throw ConfigError(fmt::format("a blend has the weight {}; weights must be positive", weight));
    }
  }
  const std::vector<double> normalised = normalised_weights(weights);
  nlohmann::ordered_json description = {{"class", "BlendedDataset"}, {"datasets", descriptions}};
  if (options.cache_naming == CacheNaming::kWithSplit) {
    description["split"] = split_name(options.split);
  }
  description["weights"] = normalised;
  description["size"] = size;
  description_ = python_json(description);
  if (options.cache_path.empty()) {
    index_ = build_blend_index(normalised, size);
  } else {
    const IndexCache cache(options.cache_path, "BlendedDataset", description_, options.split,
                           options.cache_naming);
    if (!load(index_, size, cache)) {
      index_ = build_blend_index(normalised, size);
      const bool saved = cache.save([&] {
        index_.dataset_index.save(cache.array_file(kDatasetIndex));
        index_.dataset_sample_index.save(cache.array_file(kDatasetSampleIndex));
      });
      if (saved) load(index_, size, cache);
    }
  }
  check_sizes();
}

void BlendedDataset::check_sizes() const {
  std::vector<int64_t> needed(datasets_.size(), 0);
  for (int64_t k = 0; k < num_samples(); ++k) {
    const auto d = static_cast<size_t>(index_.dataset_index[k]);
    if (d >= datasets_.size()) {
      throw FormatError(
          fmt::format("the cached blend index takes sample {} from dataset {} of {}; "
                      "delete the cache files of this blend",
                      k, d, datasets_.size()));
    }
    needed[d] = std::max(needed[d], index_.dataset_sample_index[k] + 1);
  }
  for (size_t d = 0; d < datasets_.size(); ++d) {
    if (needed[d] > datasets_[d]->num_samples()) {
      throw ConfigError(
          fmt::format("a blend takes {} samples from its dataset number {}, which has "
                      "{}; lower its weight or the number of samples",
                      needed[d], d + 1, datasets_[d]->num_samples()));
    }
  }
}

void BlendedDataset::read(int64_t sample, std::span<int64_t> out) const {
  if (sample < 0 || sample >= num_samples()) {
    throw Error(fmt::format("sample {} of a blend is outside [0, {})", sample, num_samples()));
  }
  datasets_[static_cast<size_t>(index_.dataset_index[sample])]->read(
      index_.dataset_sample_index[sample], out);
}

}  // namespace megatron

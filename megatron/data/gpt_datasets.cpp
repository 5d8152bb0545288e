#include "megatron/data/gpt_datasets.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "megatron/core/error.h"
#include "megatron/core/log.h"
#include "megatron/data/blended_dataset.h"
#include "megatron/data/data_paths.h"
#include "megatron/data/mock_gpt_dataset.h"

namespace megatron {
namespace {

// Opens each dataset once, however many splits and blends use it.
class OpenDatasets {
 public:
  std::shared_ptr<const IndexedDataset> open(const std::string& prefix) {
    auto& dataset = open_[prefix];
    if (dataset == nullptr) dataset = std::make_shared<const IndexedDataset>(prefix);
    return dataset;
  }

 private:
  std::map<std::string, std::shared_ptr<const IndexedDataset>> open_;
};

// Builds the dataset of one split from a blend whose datasets are cut at `bounds`.
class SplitBuilder {
 public:
  SplitBuilder(OpenDatasets& open, const GptDatasetOptions& options, Split split,
               SplitBounds bounds, std::string blend_cache)
      : open_(open),
        options_(options),
        split_(split),
        bounds_(bounds),
        blend_cache_(std::move(blend_cache)) {}

  std::shared_ptr<const SampleDataset> build(const Blend& blend, int64_t num_samples) {
    if (!blend.weights.empty()) return build_weighted(blend, num_samples);
    if (blend.prefixes.size() == 1) return member(blend.prefixes.front(), num_samples);
    return build_by_size(blend, num_samples);
  }

 private:
  std::shared_ptr<const SampleDataset> member(const std::string& prefix,
                                              std::optional<int64_t> num_samples) {
    const auto data = open_.open(prefix);
    descriptions_.push_back(gpt_description(prefix, split_, num_samples, options_));
    return std::make_shared<const GptDataset>(data, split_range(bounds_, data->num_sequences()),
                                              split_, num_samples, options_);
  }

  std::shared_ptr<const SampleDataset> build_weighted(const Blend& blend, int64_t num_samples) {
    // Compat: core_r0.5.0 asks each dataset, and so the blend, for 0.5 % more than its share.
    constexpr double kSurplus = 1.005;
    const std::vector<double> weights = normalised_weights(blend.weights);
    std::vector<std::shared_ptr<const SampleDataset>> members;
    int64_t size = 0;
    for (size_t i = 0; i < weights.size(); ++i) {
      const auto share =
          static_cast<int64_t>(std::ceil(static_cast<double>(num_samples) * weights[i] * kSurplus));
      members.push_back(member(blend.prefixes[i], share));
      size += share;
    }
    return blended(std::move(members), weights, size);
  }

  std::shared_ptr<const SampleDataset> build_by_size(const Blend& blend, int64_t num_samples) {
    std::vector<std::shared_ptr<const SampleDataset>> members;
    std::vector<double> weights;
    int64_t total = 0;
    for (const std::string& prefix : blend.prefixes) {
      members.push_back(member(prefix, std::nullopt));
      weights.push_back(static_cast<double>(members.back()->num_samples()));
      total += members.back()->num_samples();
    }
    if (total < num_samples) {
      warn(
          fmt::format("the {} datasets of the {} split have {} samples together and {} are asked "
                      "for; without weights each is read once, give weights to repeat them",
                      members.size(), split_name(split_), total, num_samples));
    }
    return blended(std::move(members), weights, std::min(total, num_samples));
  }

  std::shared_ptr<const SampleDataset> blended(
      std::vector<std::shared_ptr<const SampleDataset>> members, const std::vector<double>& weights,
      int64_t size) {
    return std::make_shared<const BlendedDataset>(
        std::move(members), descriptions_, weights, size,
        BlendedDataset::Options{
            .cache_path = blend_cache_, .cache_naming = options_.cache_naming, .split = split_});
  }

  OpenDatasets& open_;
  const GptDatasetOptions& options_;
  Split split_;
  SplitBounds bounds_;
  std::string blend_cache_;
  std::vector<nlohmann::ordered_json> descriptions_;
};

std::shared_ptr<const SampleDataset>& member_of(GptDatasets& datasets, Split split) {
  switch (split) {
    case Split::kTrain:
      return datasets.train;
    case Split::kValid:
      return datasets.valid;
    case Split::kTest:
      return datasets.test;
  }
  throw InternalError("Split out of range");
}

}  // namespace

GptDatasets build_gpt_datasets(const DataConfig& config, const SampleCounts& samples,
                               int64_t seq_length, int64_t seed, const Tokenizer& tokenizer) {
  GptDatasets datasets;
  if (config.mock_data) {
    for (const Split split : kSplits) {
      if (samples.of(split) == 0) continue;
      member_of(datasets, split) = std::make_shared<const MockGptDataset>(split, seq_length);
    }
    return datasets;
  }

  const DataPaths paths = data_paths(config);
  GptDatasetOptions options;
  options.seq_length = seq_length;
  options.seed = seed;
  options.vocab_size = tokenizer.vocab_size();
  options.tokenizer = tokenizer.description();
  options.cache_path = config.data_cache_path;
  const bool is_split = !paths.all.prefixes.empty();
  if (is_split) {
    options.split = config.split;
    options.split_matrix = parse_split(config.split);
  }

  OpenDatasets open;
  bool any = is_split;
  for (const Split split : kSplits) {
    const auto k = static_cast<size_t>(split);
    const Blend& blend = is_split ? paths.all : paths.per_split[k];
    any = any || !blend.prefixes.empty();
    const auto bounds = is_split ? (*options.split_matrix)[k] : SplitBounds{};
    if (blend.prefixes.empty() || !bounds || samples.of(split) == 0) continue;
    SplitBuilder builder(open, options, split, *bounds, config.data_cache_path);
    member_of(datasets, split) = builder.build(blend, samples.of(split));
  }
  if (!any) {
    throw ConfigError(
        "no training data: give --data-path <prefix>, or --mock-data for synthetic "
        "samples");
  }
  return datasets;
}

}  // namespace megatron

#include "megatron/data/split_datasets.h"

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
#include "megatron/data/gpt_dataset.h"
#include "megatron/data/mock_gpt_dataset.h"

namespace megatron {
namespace {

// Opens each dataset once for all splits and blends.
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
  SplitBuilder(OpenDatasets& open, const DatasetMaker& maker, const DatasetOptions& options,
               Split split, SplitBounds bounds, std::string blend_cache)
      : open_(open),
        maker_(maker),
        options_(options),
        split_(split),
        bounds_(bounds),
        blend_cache_(std::move(blend_cache)) {}

  std::shared_ptr<const SampleDataset> build(const Blend& blend, int64_t num_samples) {
    if (!blend.weights.empty()) return build_weighted(blend, num_samples);
    if (blend.prefixes.size() == 1) {
      return member(blend.prefixes.front(), num_samples, std::nullopt);
    }
    return build_by_size(blend, num_samples);
  }

 private:
  std::shared_ptr<const SampleDataset> member(const std::string& prefix,
                                              std::optional<int64_t> num_samples,
                                              const std::optional<SplitBounds>& part) {
    DatasetOptions options = options_;
    if (part) {  // another part has another index
      options.split = fmt::format("{}:{}", part->lower, part->upper);
      options.split_matrix = SplitMatrix();
      (*options.split_matrix)[static_cast<size_t>(split_)] = *part;
    }
    descriptions_.push_back(maker_.describe(prefix, split_, num_samples, options));
    return maker_.make(open_.open(prefix), part.value_or(bounds_), split_, num_samples, options);
  }

  std::shared_ptr<const SampleDataset> build_weighted(const Blend& blend, int64_t num_samples) {
    // Compat: core_r0.5.0 requests 0.5 % more than each dataset's share.
    constexpr double kSurplus = 1.005;
    const std::vector<double> weights = normalised_weights(blend.weights);
    std::vector<std::shared_ptr<const SampleDataset>> members;
    int64_t size = 0;
    for (size_t i = 0; i < weights.size(); ++i) {
      const auto share =
          static_cast<int64_t>(std::ceil(static_cast<double>(num_samples) * weights[i] * kSurplus));
      const auto part = blend.parts.empty() ? std::nullopt : std::optional(blend.parts[i]);
      members.push_back(member(blend.prefixes[i], share, part));
      size += share;
    }
    return blended(std::move(members), weights, size);
  }

  std::shared_ptr<const SampleDataset> build_by_size(const Blend& blend, int64_t num_samples) {
    std::vector<std::shared_ptr<const SampleDataset>> members;
    std::vector<double> weights;
    int64_t total = 0;
    for (const std::string& prefix : blend.prefixes) {
      members.push_back(member(prefix, std::nullopt, std::nullopt));
      weights.push_back(static_cast<double>(members.back()->num_samples()));
      total += members.back()->num_samples();
    }
    if (total < num_samples) {
      warn(
          fmt::format("the {} datasets of the {} split have {} samples together, but {} are "
                      "requested; without weights each is read once, give weights to repeat them",
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
  const DatasetMaker& maker_;
  const DatasetOptions& options_;
  Split split_;
  SplitBounds bounds_;
  std::string blend_cache_;
  std::vector<nlohmann::ordered_json> descriptions_;
};

// Adds the dataset of a split. A named blend becomes a separate group, except for training.
void add_dataset(SplitDatasets& datasets, Split split, const std::string& name,
                 std::shared_ptr<const SampleDataset> dataset) {
  if (split == Split::kTrain) {
    datasets.train = std::move(dataset);
  } else if (name.empty()) {
    (split == Split::kValid ? datasets.valid : datasets.test) = std::move(dataset);
  } else {
    auto& groups = split == Split::kValid ? datasets.valid_groups : datasets.test_groups;
    groups.push_back({name, std::move(dataset)});
  }
}

// True if these bounds exclude every document of the blend, as --split may with few documents.
bool is_empty(OpenDatasets& open, const Blend& blend, const SplitBounds& bounds,
              bool is_split_by_document) {
  return std::ranges::all_of(blend.prefixes, [&](const std::string& prefix) {
    const auto data = open.open(prefix);
    const int64_t size = is_split_by_document ? data->num_documents() : data->num_sequences();
    return split_range(bounds, size).size() == 0;
  });
}

}  // namespace

std::vector<DatasetGroup> SplitDatasets::of(Split split) const {
  const auto groups_or = [](const std::vector<DatasetGroup>& groups,
                            const std::shared_ptr<const SampleDataset>& dataset) {
    if (!groups.empty() || dataset == nullptr) return groups;
    return std::vector<DatasetGroup>{{"", dataset}};
  };
  switch (split) {
    case Split::kTrain:
      return groups_or({}, train);
    case Split::kValid:
      return groups_or(valid_groups, valid);
    case Split::kTest:
      return groups_or(test_groups, test);
  }
  throw InternalError("Split out of range");
}

SplitDatasets build_split_datasets(const DataConfig& config, const SampleCounts& samples,
                                   int64_t seq_length, int64_t seed, const Tokenizer& tokenizer,
                                   const DatasetMaker& maker) {
  const DataPaths paths = data_paths(config);
  DatasetOptions options;
  options.seq_length = seq_length;
  options.seed = seed;
  options.vocab_size = tokenizer.vocab_size();
  options.tokenizer = tokenizer.description();
  options.cache_path = config.data_cache_path;
  const bool is_split = !paths.all.prefixes.empty();
  if (is_split) {
    options.split = config.split;
    options.split_matrix = maker.split_matrix.value_or(parse_split(config.split));
  }

  SplitDatasets datasets;
  OpenDatasets open;
  bool any = is_split;
  for (const Split split : kSplits) {
    const auto k = static_cast<size_t>(split);
    const std::vector<Blend> blends = is_split ? std::vector{paths.all} : paths.per_split[k];
    any = any || !blends.empty();
    const auto bounds = is_split ? (*options.split_matrix)[k] : SplitBounds{};
    if (!bounds || samples.of(split) == 0) continue;
    if (is_split && split != Split::kTrain &&
        is_empty(open, paths.all, *bounds, maker.is_split_by_document)) {
      // Compat: Megatron-LM never finishes building an index of no documents.
      warn(fmt::format(
          "--split {} leaves no document for the {} split, which will not be evaluated; change it, "
          "or add data",
          config.split, split_name(split)));
      continue;
    }
    for (const Blend& blend : blends) {
      SplitBuilder builder(open, maker, options, split, *bounds, config.data_cache_path);
      add_dataset(datasets, split, blend.name, builder.build(blend, samples.of(split)));
    }
  }
  if (!any) {
    throw ConfigError(
        "no training data: give --data-path <prefix>, or --mock-data for synthetic "
        "samples");
  }
  return datasets;
}

SplitDatasets build_gpt_datasets(const DataConfig& config, const SampleCounts& samples,
                                 int64_t seq_length, int64_t seed, const Tokenizer& tokenizer) {
  if (config.mock_data) {
    SplitDatasets datasets;
    for (const Split split : kSplits) {
      if (samples.of(split) == 0) continue;
      add_dataset(datasets, split, "", std::make_shared<const MockGptDataset>(split, seq_length));
    }
    return datasets;
  }
  const DatasetMaker maker = {
      .describe =
          [](const std::string& prefix, Split split, std::optional<int64_t> num_samples,
             const DatasetOptions& options) {
            return dataset_description("GPTDataset", prefix, split, num_samples, options);
          },
      .make =
          [](std::shared_ptr<const IndexedDataset> data, SplitBounds bounds, Split split,
             std::optional<int64_t> num_samples, const DatasetOptions& options) {
            const IndexRange sequences = split_range(bounds, data->num_sequences());
            return std::make_shared<const GptDataset>(std::move(data), sequences, split,
                                                      num_samples, options);
          }};
  return build_split_datasets(config, samples, seq_length, seed, tokenizer, maker);
}

}  // namespace megatron

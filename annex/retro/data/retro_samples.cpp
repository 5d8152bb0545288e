#include "annex/retro/data/retro_samples.h"

#include <fmt/format.h>

#include <array>
#include <cmath>
#include <nlohmann/json.hpp>
#include <utility>

#include "megatron/core/error.h"
#include "megatron/data/data_paths.h"
#include "megatron/data/dataset_options.h"
#include "megatron/data/md5.h"
#include "megatron/data/python_json.h"

namespace megatron {
namespace {

// numpy.allclose() of the fractions of two splits.
bool are_close(const SplitMatrix& a, const SplitMatrix& b) {
  const auto fraction = [](const std::optional<SplitBounds>& part) {
    return part ? part->upper - part->lower : 0.0;
  };
  for (size_t k = 0; k < a.size(); ++k) {
    const double right = fraction(b[k]);
    if (std::abs(fraction(a[k]) - right) > 1e-8 + 1e-5 * std::abs(right)) return false;
  }
  return true;
}

// Records the datasets of one split that a DatasetMaker makes.
struct Members {
  std::vector<std::shared_ptr<const GptDataset>> datasets;
  std::string description;  // of the last one
};

}  // namespace

RetroSamples::RetroSamples(std::shared_ptr<const SampleDataset> dataset,
                           std::vector<std::shared_ptr<const GptDataset>> members,
                           std::string digest)
    : dataset_(std::move(dataset)),
      members_(std::move(members)),
      blend_(std::dynamic_pointer_cast<const BlendedDataset>(dataset_)),
      digest_(std::move(digest)) {}

std::vector<ChunkDatabase::Document> RetroSamples::documents_of(int64_t sample) const {
  if (sample < 0 || sample >= dataset_->num_samples()) {
    throw Error(fmt::format("sample {} of a Retro dataset is outside [0, {})", sample,
                            dataset_->num_samples()));
  }
  const int64_t member = blend_ ? blend_->index().dataset_index[sample] : 0;
  const int64_t number = blend_ ? blend_->index().dataset_sample_index[sample] : sample;
  std::vector<ChunkDatabase::Document> documents;
  for (const int64_t sequence : members_[static_cast<size_t>(member)]->sequences_of(number)) {
    documents.push_back({member, sequence});
  }
  return documents;
}

const std::optional<RetroSamples>& RetroSplits::of(Split split) const {
  switch (split) {
    case Split::kTrain:
      return train;
    case Split::kValid:
      return valid;
    case Split::kTest:
      return test;
  }
  throw InternalError("Split out of range");
}

RetroSplits build_retro_samples(const DataConfig& config, const std::string& split_preprocessing,
                                const SampleCounts& samples, int64_t seq_length, int64_t seed,
                                const Tokenizer& tokenizer) {
  if (data_paths(config).all.prefixes.empty()) {
    throw ConfigError(
        "Retro retrieves from the data that --data-path names and --split divides; give "
        "--data-path instead of paths for each split or --mock-data");
  }
  std::array<Members, kSplits.size()> members;
  const auto of = [&members](Split split) -> Members& {
    return members[static_cast<size_t>(split)];
  };
  DatasetMaker maker = {
      .describe =
          [&](const std::string& prefix, Split split, std::optional<int64_t> num_samples,
              const DatasetOptions& options) {
            nlohmann::ordered_json description =
                dataset_description("MultiSplitGPTDataset", prefix, split, num_samples, options);
            description["split_preprocessing"] = split_preprocessing;
            of(split).description = python_json(description);
            return description;
          },
      .make =
          [&](std::shared_ptr<const IndexedDataset> data, SplitBounds bounds, Split split,
              std::optional<int64_t> num_samples, const DatasetOptions& options) {
            const IndexRange sequences = split_range(bounds, data->num_sequences());
            auto made = std::make_shared<const GptDataset>(std::move(data), sequences, split,
                                                           num_samples, options);
            of(split).datasets.push_back(made);
            return made;
          }};
  const SplitMatrix pretraining = parse_split(config.split);
  const SplitMatrix preprocessing = parse_split(split_preprocessing);
  if (!are_close(pretraining, preprocessing)) {
    maker.split_matrix = intersection(pretraining, preprocessing);
  }
  const SplitDatasets built =
      build_split_datasets(config, samples, seq_length, seed, tokenizer, maker);

  const auto with_documents =
      [&](Split split,
          const std::shared_ptr<const SampleDataset>& dataset) -> std::optional<RetroSamples> {
    if (dataset == nullptr) return std::nullopt;
    const auto blend = std::dynamic_pointer_cast<const BlendedDataset>(dataset);
    return RetroSamples(dataset, of(split).datasets,
                        md5_hex(blend ? blend->description() : of(split).description));
  };
  return {with_documents(Split::kTrain, built.train), with_documents(Split::kValid, built.valid),
          with_documents(Split::kTest, built.test)};
}

}  // namespace megatron

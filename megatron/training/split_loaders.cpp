#include "megatron/training/split_loaders.h"

#include <fmt/format.h>

#include <optional>
#include <utility>

#include "megatron/comm/collectives.h"
#include "megatron/comm/working.h"
#include "megatron/core/error.h"
#include "megatron/core/log.h"
#include "megatron/training/microbatch_calculator.h"

namespace megatron {
namespace {

// Samples provided by one group, given the total of the groups of its split. An evaluation reads
// the same number of each. The groups may have changed since, so that the share is rounded down to
// whole lots.
int64_t consumed_of_group(int64_t of_split, int64_t num_groups, int64_t lot) {
  return num_groups <= 1 ? of_split : of_split / (num_groups * lot) * lot;
}

}  // namespace

void SplitLoaders::open(const RunConfig& config, const ParallelContext& parallel,
                        std::string_view model_name, const Progress& progress,
                        const std::vector<bool>& reads_data, const OpenDatasets& open_datasets,
                        const MakeBatch& make_batch) {
  const SampleCounts sizes = dataset_sizes_of(config.training);
  print_line("> building train, validation, and test datasets ...");
  print_line(" > datasets target sizes (minimum size):");
  print_line(fmt::format("    train:      {}", sizes.train));
  print_line(fmt::format("    validation: {}", sizes.valid));
  print_line(fmt::format("    test:       {}", sizes.test));
  print_line(fmt::format("> building train, validation, and test datasets for {} ...", model_name));
  const comm::Working working(parallel.world, "building the data sets");
  if (parallel.world.rank() != 0) comm::barrier(parallel.world);
  const SplitDatasets datasets = open_datasets(sizes);
  if (parallel.world.rank() == 0) comm::barrier(parallel.world);
  print_line(fmt::format("> finished creating {} datasets ...", model_name));

  const auto open_group = [&](Split split, const std::shared_ptr<const SampleDataset>& dataset,
                              int64_t consumed_samples) {
    std::vector<std::unique_ptr<Loader>> loaders(reads_data.size());
    for (size_t chunk = 0; chunk < reads_data.size(); ++chunk) {
      if (!reads_data[chunk]) continue;
      std::unique_ptr<Sampler> sampler =
          make_sampler({.type = config.data.dataloader_type,
                        .num_samples = dataset->num_samples(),
                        .consumed_samples = consumed_samples,
                        .micro_batch_size = config.training.micro_batch_size,
                        .data_parallel_rank = parallel.replica(),
                        .data_parallel_size = parallel.num_replicas(),
                        .data_sharding = config.data.data_sharding});
      loaders[chunk] = std::make_unique<Loader>(
          std::move(sampler),
          [dataset, split, chunk, make_batch](const SampleGroup& group) {
            return make_batch(*dataset, group, split, static_cast<int64_t>(chunk));
          },
          config.data.num_workers);
    }
    return loaders;
  };
  const int64_t lot = config.training.micro_batch_size * parallel.num_replicas();
  const auto open_split = [&](Split split, int64_t consumed_samples) {
    const std::vector<DatasetGroup> of_split = datasets.of(split);
    const int64_t consumed = consumed_of_group(consumed_samples, std::ssize(of_split), lot);
    for (const auto& [name, dataset] : of_split) {
      groups_[static_cast<size_t>(split)].push_back({name, open_group(split, dataset, consumed)});
    }
  };
  if (!config.training.skip_train) {
    if (datasets.train == nullptr) {
      throw ConfigError(fmt::format(
          "--split {} leaves no training data; raise its first number, or use --skip-train",
          config.data.split));
    }
    const bool is_trained = progress.iteration >= train_iters_of(config.training);
    if (!is_trained) open_split(Split::kTrain, progress.consumed_train_samples);
  }
  if (config.training.eval_iters > 0) {
    open_split(Split::kValid, progress.consumed_valid_samples);
    open_split(Split::kTest, 0);
  }
}

std::vector<std::string> SplitLoaders::groups(Split split) const {
  std::vector<std::string> names;
  for (const Group& group : groups_[static_cast<size_t>(split)]) names.push_back(group.name);
  return names;
}

Microbatch SplitLoaders::next(Split split, int64_t chunk) {
  const auto k = static_cast<size_t>(split);
  const Group& group = groups_[k][used_[k]];
  Loader* const loader = group.loaders[static_cast<size_t>(chunk)].get();
  if (loader == nullptr) return {};
  std::optional<Microbatch> batch = loader->next();
  if (batch) return *std::move(batch);
  throw Error(fmt::format("the {} data{} has no more samples; add data or train for fewer samples",
                          split_name(split), group.name.empty() ? "" : " " + group.name));
}

void SplitLoaders::close() {
  for (auto& of_split : groups_) of_split.clear();
}

}  // namespace megatron

#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "megatron/data/data_loader.h"
#include "megatron/data/sampler.h"
#include "megatron/data/split_datasets.h"
#include "megatron/parallel/parallel_context.h"
#include "megatron/training/run_config.h"
#include "megatron/training/train_task.h"

namespace megatron {

// The data of a run: threads prefetch microbatches of train, valid and test, separately for every
// chunk of the model.
class SplitLoaders {
 public:
  // Opens the data sets, with at least the given number of samples in each split.
  using OpenDatasets = std::function<SplitDatasets(const SampleCounts& sizes)>;
  // Makes a chunk's part of the microbatch of `group`; several threads call it.
  using MakeBatch = std::function<Microbatch(const SampleDataset& dataset, const SampleGroup& group,
                                             Split split, int64_t chunk)>;

  // Opens the data at the run's consumed samples and prints Megatron-LM's lines about it.
  // reads_data has an entry for each chunk of this rank: false if it needs no data. Rank 0 opens
  // first and builds the index caches, which the others then find. Throws ConfigError if there is
  // no training data, and the data's errors.
  void open(const RunConfig& config, const ParallelContext& parallel, std::string_view model_name,
            const Progress& progress, const std::vector<bool>& reads_data,
            const OpenDatasets& open_datasets, const MakeBatch& make_batch);

  bool has_split(Split split) const { return !groups_[static_cast<size_t>(split)].empty(); }
  // The names of the split's groups: TrainTask::groups().
  std::vector<std::string> groups(Split split) const;
  // Selects the group of the split that next() reads; initially the first.
  void use_group(Split split, size_t group) { used_[static_cast<size_t>(split)] = group; }
  // The chunk's next microbatch; empty if it needs no data. Throws Error at the end of the data.
  Microbatch next(Split split, int64_t chunk);
  // Ends the threads.
  void close();

 private:
  using Loader = DataLoader<Microbatch>;

  struct Group {
    std::string name;
    std::vector<std::unique_ptr<Loader>> loaders;  // by chunk
  };

  std::array<std::vector<Group>, 3> groups_;  // by split
  std::array<size_t, 3> used_{};              // by split
};

}  // namespace megatron

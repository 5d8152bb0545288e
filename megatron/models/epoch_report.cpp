#include "megatron/models/epoch_report.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "megatron/core/log.h"
#include "megatron/core/number_text.h"

namespace megatron {

void EpochReport::evaluated(Split split, const TrainingConfig& config, const Progress& progress,
                            const NamedValues& losses) {
  if (split != Split::kValid || losses.empty()) return;
  const double loss = losses.front().second;
  perplexity_ = std::exp(loss);
  const int64_t epoch =
      (std::max<int64_t>(progress.iteration, 1) - 1) / std::max<int64_t>(config.eval_interval, 1);
  print_line(fmt::format("epoch {}: perplexity: {} eval_loss: {}", epoch, python_repr(*perplexity_),
                         python_repr(loss)));
}

SplitDatasets epoch_datasets(const std::shared_ptr<const TextBlocks>& train,
                             const std::shared_ptr<const TextBlocks>& valid,
                             const SampleCounts& sizes, EpochDataset::Options options) {
  const auto opened = [&](const std::shared_ptr<const TextBlocks>& blocks,
                          int64_t num_samples) -> std::shared_ptr<const SampleDataset> {
    if (blocks == nullptr || num_samples == 0) return nullptr;
    options.num_samples = num_samples;
    return std::make_shared<EpochDataset>(blocks, options);
  };
  SplitDatasets datasets;
  datasets.train = opened(train, sizes.train);
  options.is_shuffled = options.drops_last = false;
  datasets.valid = opened(valid, sizes.valid);
  return datasets;
}

int64_t epoch_iterations(int64_t num_samples, int64_t global_batch_size) {
  return (num_samples + global_batch_size - 1) / global_batch_size;
}

}  // namespace megatron

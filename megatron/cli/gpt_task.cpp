#include "megatron/cli/gpt_task.h"

#include <fmt/format.h>

#include <optional>
#include <utility>

#include "megatron/comm/collectives.h"
#include "megatron/core/error.h"
#include "megatron/core/log.h"
#include "megatron/training/microbatch_calculator.h"

namespace megatron::cli {
namespace {

// Index caches are built once: rank 0 goes first, the others find them.
SplitDatasets datasets_of(const TrainingArgs& args, const Tokenizer& tokenizer,
                          const SampleCounts& sizes, const comm::Group& world) {
  if (world.rank() != 0) comm::barrier(world);
  SplitDatasets datasets = build_gpt_datasets(args.data, sizes, args.transformer.seq_length,
                                              args.training.seed, tokenizer);
  if (world.rank() == 0) comm::barrier(world);
  return datasets;
}

}  // namespace

GptTask::GptTask(const Tokenizer& tokenizer, GptSetup& setup) {
  const TrainingArgs& args = setup.args();
  const Progress& progress = setup.progress();
  const SampleCounts sizes = dataset_sizes_of(args.training);
  print_line("> building train, validation, and test datasets ...");
  print_line(" > datasets target sizes (minimum size):");
  print_line(fmt::format("    train:      {}", sizes.train));
  print_line(fmt::format("    validation: {}", sizes.valid));
  print_line(fmt::format("    test:       {}", sizes.test));
  print_line("> building train, validation, and test datasets for GPT ...");
  const SplitDatasets datasets = datasets_of(args, tokenizer, sizes, setup.parallel().world);
  print_line("> finished creating GPT datasets ...");

  for (const std::unique_ptr<GptModel>& chunk : setup.chunks()) {
    steps_.push_back(std::make_unique<const GptStep>(
        *chunk, setup.random(),
        GptStep::Options{.micro_batch_size = args.training.micro_batch_size,
                         .resets_position_ids = args.data.reset_position_ids}));
  }
  const GptSampleOptions sample_options{.eod = tokenizer.eod(),
                                        .eod_mask_loss = args.data.eod_mask_loss,
                                        .reset_position_ids = args.data.reset_position_ids,
                                        .reset_attention_mask = args.data.reset_attention_mask};
  const auto open = [&](Split split, const std::shared_ptr<const SampleDataset>& dataset,
                        int64_t consumed_samples) {
    if (dataset == nullptr) return;
    has_split_[static_cast<size_t>(split)] = true;
    for (const std::unique_ptr<const GptStep>& step : steps_) {
      std::unique_ptr<Loader>& loader = loaders_[static_cast<size_t>(split)].emplace_back();
      if (!step->reads_data(args.data.reset_attention_mask)) continue;
      const auto make_batch = [dataset, sample_options, &step = *step,
                               is_trained = split == Split::kTrain](const SampleGroup& group) {
        return step.microbatch(make_gpt_batch(*dataset, group, sample_options), is_trained);
      };
      std::unique_ptr<Sampler> sampler =
          make_sampler({.type = args.data.dataloader_type,
                        .num_samples = dataset->num_samples(),
                        .consumed_samples = consumed_samples,
                        .micro_batch_size = args.training.micro_batch_size,
                        .data_parallel_rank = setup.parallel().replica(),
                        .data_parallel_size = setup.parallel().num_replicas(),
                        .data_sharding = args.data.data_sharding});
      loader = std::make_unique<Loader>(std::move(sampler), make_batch, args.data.num_workers);
    }
  };
  if (!args.training.skip_train) {
    if (datasets.train == nullptr) {
      throw ConfigError(fmt::format(
          "there is no training data: --split {} gives the first of its parts none; raise it, or "
          "use --skip-train",
          args.data.split));
    }
    open(Split::kTrain, datasets.train, progress.consumed_train_samples);
  }
  if (args.training.eval_iters > 0) {
    open(Split::kValid, datasets.valid, progress.consumed_valid_samples);
    open(Split::kTest, datasets.test, 0);
  }
}

bool GptTask::has_split(Split split) const { return has_split_[static_cast<size_t>(split)]; }

Microbatch GptTask::get_batch(Split split, int64_t chunk) {
  Loader* const loader = loaders_[static_cast<size_t>(split)][static_cast<size_t>(chunk)].get();
  if (loader == nullptr) return {};
  std::optional<Microbatch> batch = loader->next();
  if (batch) return *std::move(batch);
  throw Error(fmt::format("the {} data has no more samples; add data or train for fewer samples",
                          split_name(split)));
}

MicrobatchOutput GptTask::forward_step(Split, int64_t chunk, const Microbatch& batch,
                                       const Variable& activations) {
  return steps_[static_cast<size_t>(chunk)]->forward(batch, activations);
}

}  // namespace megatron::cli

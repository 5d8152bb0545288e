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

GptInput input_of(const GptBatch& batch, const DataConfig& data) {
  const Shape shape = {batch.micro_batch_size, batch.seq_length};
  GptInput input;
  input.tokens = tensor_of(batch.tokens, shape);
  if (data.reset_position_ids) input.position_ids = tensor_of(batch.position_ids, shape);
  if (!batch.document_starts.empty()) {
    input.document_starts = tensor_of(batch.document_starts, shape);
  }
  return input;
}

// Index caches are built once: rank 0 goes first, the others find them.
GptDatasets datasets_of(const TrainingArgs& args, const Tokenizer& tokenizer,
                        const SampleCounts& sizes, const comm::Group& world) {
  if (world.rank() != 0) comm::barrier(world);
  GptDatasets datasets = build_gpt_datasets(args.data, sizes, args.transformer.seq_length,
                                            args.training.seed, tokenizer);
  if (world.rank() == 0) comm::barrier(world);
  return datasets;
}

}  // namespace

GptTask::GptTask(const Tokenizer& tokenizer, GptSetup& setup) : setup_(setup) {
  const TrainingArgs& args = setup.args();
  const Progress& progress = setup.progress();
  const SampleCounts sizes = dataset_sizes_of(args.training);
  print_line("> building train, validation, and test datasets ...");
  print_line(" > datasets target sizes (minimum size):");
  print_line(fmt::format("    train:      {}", sizes.train));
  print_line(fmt::format("    validation: {}", sizes.valid));
  print_line(fmt::format("    test:       {}", sizes.test));
  print_line("> building train, validation, and test datasets for GPT ...");
  const GptDatasets datasets = datasets_of(args, tokenizer, sizes, setup.parallel().world);
  print_line("> finished creating GPT datasets ...");

  const GptSampleOptions sample_options{.eod = tokenizer.eod(),
                                        .eod_mask_loss = args.data.eod_mask_loss,
                                        .reset_position_ids = args.data.reset_position_ids,
                                        .reset_attention_mask = args.data.reset_attention_mask};
  const auto open = [&](Split split, const std::shared_ptr<const SampleDataset>& dataset,
                        int64_t consumed_samples) {
    if (dataset == nullptr) return;
    const auto make_batch = [dataset, sample_options](const SampleGroup& group) {
      return make_gpt_batch(*dataset, group, sample_options);
    };
    has_split_[static_cast<size_t>(split)] = true;
    for (const std::unique_ptr<GptModel>& chunk : setup.chunks()) {
      std::unique_ptr<Loader>& loader = loaders_[static_cast<size_t>(split)].emplace_back();
      if (!reads_data(*chunk)) continue;
      std::unique_ptr<Sampler> sampler =
          make_sampler({.type = args.data.dataloader_type,
                        .num_samples = dataset->num_samples(),
                        .consumed_samples = consumed_samples,
                        .micro_batch_size = args.training.micro_batch_size,
                        .data_parallel_rank = setup.parallel().data.rank(),
                        .data_parallel_size = setup.parallel().data.size(),
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

bool GptTask::reads_data(const GptModel& chunk) const {
  const DataConfig& data = setup_.args().data;
  return chunk.chunk().has_embedding || chunk.chunk().has_head || data.reset_attention_mask ||
         data.reset_position_ids;
}

GptBatch GptTask::next_batch(Split split, size_t chunk) {
  std::optional<GptBatch> batch = loaders_[static_cast<size_t>(split)][chunk]->next();
  if (batch) return *std::move(batch);
  throw Error(fmt::format("the {} data has no more samples; add data or train for fewer samples",
                          split_name(split)));
}

MicrobatchOutput GptTask::forward_step(Split split, int64_t chunk, const Variable& activations) {
  const auto index = static_cast<size_t>(chunk);
  const GptModel& model = *setup_.chunks()[index];
  if (!reads_data(model)) return {model.forward({}, activations, setup_.random())};
  const GptBatch batch = next_batch(split, index);
  const Variable hidden =
      model.forward(input_of(batch, setup_.args().data), activations, setup_.random());
  if (!model.chunk().has_head) return {hidden};
  const Shape shape = {batch.micro_batch_size, batch.seq_length};
  const Variable loss =
      gpt_loss(model, hidden, tensor_of(batch.labels, shape), tensor_of(batch.loss_mask, shape));
  return {loss, {{"lm loss", loss.data()}}};
}

}  // namespace megatron::cli

#include "megatron/models/gpt/gpt_task.h"

#include <fmt/format.h>

#include <optional>
#include <utility>

#include "megatron/comm/collectives.h"
#include "megatron/comm/working.h"
#include "megatron/core/error.h"
#include "megatron/core/log.h"
#include "megatron/parallel/pipeline/model_chunk.h"
#include "megatron/training/flops.h"
#include "megatron/training/microbatch_calculator.h"

namespace megatron {

GptTask::GptTask(const RunConfig& config, std::shared_ptr<const Tokenizer> tokenizer)
    : config_(config), tokenizer_(std::move(tokenizer)) {}

std::vector<const Module*> GptTask::build_model(const ModelSite& site) {
  parallel_ = &site.parallel;
  std::vector<const Module*> chunks;
  for (const ModelChunk& chunk : model_chunks(config_.parallel, config_.transformer.num_layers,
                                              site.parallel.pipeline.rank())) {
    models_.push_back(std::make_unique<const GptModel>(
        config_.transformer, chunk, site.parallel.tensor, site.stream, site.parallel.context));
    steps_.push_back(std::make_unique<const GptStep>(
        *models_.back(), site.random,
        GptStep::Options{.micro_batch_size = config_.training.micro_batch_size,
                         .resets_position_ids = config_.data.reset_position_ids}));
    chunks.push_back(models_.back().get());
  }
  return chunks;
}

std::vector<ChunkBoundary> GptTask::boundaries() const {
  std::vector<ChunkBoundary> all;
  for (const auto& model : models_) {
    all.push_back(model->boundary(config_.training.micro_batch_size));
  }
  return all;
}

SplitDatasets GptTask::open_datasets(const SampleCounts& sizes) const {
  return build_gpt_datasets(config_.data, sizes, config_.transformer.seq_length,
                            config_.training.seed, *tokenizer_);
}

void GptTask::open_data(const Progress& progress) {
  const SampleCounts sizes = dataset_sizes_of(config_.training);
  print_line("> building train, validation, and test datasets ...");
  print_line(" > datasets target sizes (minimum size):");
  print_line(fmt::format("    train:      {}", sizes.train));
  print_line(fmt::format("    validation: {}", sizes.valid));
  print_line(fmt::format("    test:       {}", sizes.test));
  print_line("> building train, validation, and test datasets for GPT ...");
  // Rank 0 goes first and builds the index caches; the others find them.
  const comm::Group& world = parallel_->world;
  const comm::Working working(world, "building the data sets");
  if (world.rank() != 0) comm::barrier(world);
  const SplitDatasets datasets = open_datasets(sizes);
  if (world.rank() == 0) comm::barrier(world);
  print_line("> finished creating GPT datasets ...");

  if (!config_.training.skip_train) {
    if (datasets.train == nullptr) {
      throw ConfigError(
          fmt::format("--split {} leaves no training data; raise its first number, or use "
                      "--skip-train",
                      config_.data.split));
    }
    open_split(Split::kTrain, datasets.train, progress.consumed_train_samples);
  }
  if (config_.training.eval_iters > 0) {
    open_split(Split::kValid, datasets.valid, progress.consumed_valid_samples);
    open_split(Split::kTest, datasets.test, 0);
  }
}

void GptTask::open_split(Split split, const std::shared_ptr<const SampleDataset>& dataset,
                         int64_t consumed_samples) {
  if (dataset == nullptr) return;
  has_split_[static_cast<size_t>(split)] = true;
  const DataConfig& data = config_.data;
  const GptSampleOptions options{.eod = tokenizer_->eod(),
                                 .eod_mask_loss = data.eod_mask_loss,
                                 .reset_position_ids = data.reset_position_ids,
                                 .reset_attention_mask = data.reset_attention_mask};
  for (const std::unique_ptr<const GptStep>& step : steps_) {
    std::unique_ptr<Loader>& loader = loaders_[static_cast<size_t>(split)].emplace_back();
    if (!step->reads_data(data.reset_attention_mask)) continue;
    const auto make_batch = [this, dataset, options, &step = *step,
                             is_trained = split == Split::kTrain](const SampleGroup& group) {
      GptBatch batch = make_gpt_batch(*dataset, group, options);
      adjust_batch(batch);
      return step.microbatch(batch, is_trained);
    };
    std::unique_ptr<Sampler> sampler =
        make_sampler({.type = data.dataloader_type,
                      .num_samples = dataset->num_samples(),
                      .consumed_samples = consumed_samples,
                      .micro_batch_size = config_.training.micro_batch_size,
                      .data_parallel_rank = parallel_->replica(),
                      .data_parallel_size = parallel_->num_replicas(),
                      .data_sharding = data.data_sharding});
    loader = std::make_unique<Loader>(std::move(sampler), make_batch, data.num_workers);
  }
}

void GptTask::close() {
  for (auto& of_split : loaders_) of_split.clear();
  steps_.clear();
  models_.clear();
}

void GptTask::adjust_batch(GptBatch&) const {}

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
                                       std::span<const Variable> activations) {
  const GptModel& model = *models_[static_cast<size_t>(chunk)];
  const Variable hidden =
      step(chunk).forward(batch, activations.empty() ? Variable() : activations[0]);
  if (!model.chunk().has_head) return {.activations = {hidden}};
  return loss(model, hidden, step(chunk).targets(batch));
}

MicrobatchOutput GptTask::loss(const GptModel& model, const Variable& hidden,
                               const GptTargets& targets) const {
  const Variable mean = gpt_loss(model, hidden, targets.labels, targets.loss_mask, targets.divisor);
  return {.losses = {mean}, .logged = {{"lm loss", mean.data()}}};
}

double GptTask::flops(int64_t batch_size) const {
  return standard_flops(config_.transformer, batch_size);
}

std::map<std::string, ArgMap> GptTask::recorded() const {
  return {{"tokenizer",
           {{"type", std::string(tokenizer_->type())}, {"vocab_size", tokenizer_->vocab_size()}}}};
}

}  // namespace megatron

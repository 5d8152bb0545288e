#include "megatron/models/gpt/gpt_task.h"

#include <utility>

#include "megatron/core/error.h"
#include "megatron/data/prefix_lm.h"
#include "megatron/parallel/pipeline/model_chunk.h"
#include "megatron/training/flops.h"

namespace megatron {

GptTask::GptTask(const RunConfig& config, std::shared_ptr<const Tokenizer> tokenizer)
    : config_(config),
      tokenizer_(std::move(tokenizer)),
      sequence_length_(config.transformer.seq_length) {
  const CurriculumConfig& curriculum = config_.training.curriculum;
  if (curriculum.is_on()) curriculum_.emplace(curriculum);
}

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
                         .reads_position_ids = config_.data.reset_position_ids || curriculum_,
                         .weighs_tokens = config_.training.calculate_per_token_loss}));
    chunks.push_back(models_.back().get());
  }
  return chunks;
}

std::vector<ChunkBoundary> GptTask::boundaries() const {
  std::vector<ChunkBoundary> all;
  for (const auto& model : models_) {
    all.push_back(model->boundary(config_.training.micro_batch_size, sequence_length_));
  }
  return all;
}

SplitDatasets GptTask::open_datasets(const SampleCounts& sizes) const {
  return build_gpt_datasets(config_.data, sizes, config_.transformer.seq_length,
                            config_.training.seed, *tokenizer_);
}

void GptTask::open_data(const Progress& progress) {
  const DataConfig& data = config_.data;
  const GptSampleOptions options{.eod = tokenizer_->eod(),
                                 .eod_mask_loss = data.eod_mask_loss,
                                 .reset_position_ids = data.reset_position_ids,
                                 .reset_attention_mask = data.reset_attention_mask,
                                 .neighbor_tokens = trailing_ids_per_sample()};
  const PrefixOptions prefixes{.eod = tokenizer_->eod(),
                               .per_document = data.reset_attention_mask,
                               .loss_on_targets_only = data.loss_on_targets_only,
                               .reweight_loss = data.reweight_loss_based_on_position_frequency,
                               .seed = static_cast<uint64_t>(config_.training.seed)};
  std::vector<bool> reads_data;
  for (const std::unique_ptr<const GptStep>& step : steps_) {
    reads_data.push_back(step->reads_data(data.reset_attention_mask || data.prefix_lm));
  }
  loaders_.open(
      config_, *parallel_, model_name(), progress, reads_data,
      [this](const SampleCounts& sizes) { return open_datasets(sizes); },
      [this, options, prefixes, progress](const SampleDataset& dataset, const SampleGroup& group,
                                          Split split, int64_t chunk) {
        GptBatch batch = make_gpt_batch(dataset, group, options);
        if (config_.data.prefix_lm) add_prefixes(batch, split, prefixes);
        adjust_batch(batch, split);
        if (split == Split::kTrain) shorten(batch, progress);
        return step(chunk).microbatch(batch, split == Split::kTrain);
      });
}

void GptTask::close() {
  loaders_.close();
  steps_.clear();
  models_.clear();
}

int64_t GptTask::trailing_ids_per_sample() const {
  return config_.transformer.retro.neighbor_tokens(config_.transformer.seq_length);
}

void GptTask::adjust_batch(GptBatch&, Split) const {}

void GptTask::shorten(GptBatch& batch, const Progress& begin) const {
  if (!curriculum_) return;
  const int64_t read = batch.first_sample - begin.consumed_train_samples;
  const int64_t iteration = begin.iteration + 1 + read / config_.training.global_batch_size;
  const int64_t length = curriculum_->length_at(iteration);
  if (length < batch.seq_length) batch = first_tokens(batch, length);
}

MicrobatchOutput GptTask::forward_step(Split, int64_t chunk, const Microbatch& batch,
                                       std::span<const Variable> activations) {
  const GptModel& model = *models_[static_cast<size_t>(chunk)];
  const Variable hidden =
      step(chunk).forward(batch, activations.empty() ? Variable() : activations[0]);
  if (!model.chunk().has_head) return {.activations = {hidden}};
  GptTargets targets = step(chunk).targets(batch);
  targets.seed = loss_seed_;
  MicrobatchOutput output = loss(model, hidden, targets);
  output.weight = targets.weight;
  return output;
}

// The weights of a prefix LM's tokens are divided by what they are on average.
bool GptTask::weighs_tokens() const { return !config_.data.prefix_lm; }

MicrobatchOutput GptTask::loss(const GptModel& model, const Variable& hidden,
                               const GptTargets& targets) const {
  const Variable mean =
      gpt_loss(model, hidden, targets.labels, targets.loss_mask, targets.divisor, targets.seed);
  return {.losses = {mean}, .logged = {{"lm loss", mean.data()}}};
}

double GptTask::flops(int64_t batch_size) const {
  TransformerConfig config = config_.transformer;
  config.seq_length = sequence_length_;
  return standard_flops(config, batch_size);
}

std::map<std::string, ArgMap> GptTask::recorded() const {
  return {{"tokenizer",
           {{"type", std::string(tokenizer_->type())}, {"vocab_size", tokenizer_->vocab_size()}}}};
}

}  // namespace megatron

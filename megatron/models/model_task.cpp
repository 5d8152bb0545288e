#include "megatron/models/model_task.h"

#include <string>
#include <utility>

#include "megatron/models/model_chunks.h"
#include "megatron/ops/cross_entropy.h"
#include "megatron/training/flops.h"
#include "megatron/training/loss_sums.h"

namespace megatron {

std::vector<Tensor*> TextMicrobatch::tensors() {
  std::vector<Tensor*> all = input.tensors();
  for (Tensor* target : targets.tensors()) all.push_back(target);
  for (TokenTargets& depth : future_targets) {
    for (Tensor* target : depth.tensors()) all.push_back(target);
  }
  return all;
}

ModelTask::ModelTask(const RunConfig& config, std::shared_ptr<const Tokenizer> tokenizer)
    : config_(config),
      tokenizer_(std::move(tokenizer)),
      sequence_length_(config.transformer.seq_length) {}

std::string_view ModelTask::model_name() const { return name_of(config_.transformer.kind); }

std::vector<std::unique_ptr<const Model>> ModelTask::make_chunks(const ModelSite& site) const {
  return make_model_chunks(config_.transformer, config_.parallel, site.parallel, site.stream);
}

RowIds ModelTask::positions(int64_t rows, int64_t length, Stream stream) const {
  const TransformerConfig& c = config_.transformer;
  if (c.position_embedding_type != PositionEmbedding::kLearnedAbsolute) return {};
  return prepared_ids(default_position_ids(rows, length), c.max_position_embeddings, "position id")
      .to(stream);
}

std::vector<const Module*> ModelTask::build_model(const ModelSite& site) {
  parallel_ = &site.parallel;
  random_ = &site.random;
  models_ = make_chunks(site);
  const TransformerConfig& c = config_.transformer;
  const int64_t rows = config_.training.micro_batch_size * sequences_per_sample();
  std::vector<const Module*> chunks;
  for (const std::unique_ptr<const Model>& model : models_) {
    chunks.push_back(model.get());
    const ChunkEnds& ends = model->ends();
    if (ends.embeds_tokens) positions_.position_ids = positions(rows, c.seq_length, site.stream);
    if (ends.embeds_decoder_tokens) {
      positions_.decoder_position_ids = positions(rows, c.decoder_seq_length, site.stream);
    }
    if (c.retro.reads_neighbors()) {
      positions_.neighbor_position_ids =
          positions(rows * c.retro.num_neighbors * c.retro.num_chunks(c.seq_length),
                    c.retro.neighbor_length(), site.stream);
    }
  }
  return chunks;
}

void ModelTask::adjust_parameter(OptimizedParameter& parameter) const {
  parameter.is_clipped_apart = config_.optimizer.clips_apart && parameter.name.starts_with("mtp.");
}

std::vector<ChunkBoundary> ModelTask::boundaries() const {
  std::vector<ChunkBoundary> all;
  for (const std::unique_ptr<const Model>& model : models_) {
    all.push_back(model->boundary(config_.training.micro_batch_size, sequence_length_));
  }
  return all;
}

void ModelTask::open_data(const Progress& progress) {
  std::vector<bool> reads;
  for (int64_t chunk = 0; chunk < std::ssize(models_); ++chunk) reads.push_back(reads_data(chunk));
  loaders_.open(
      config_, *parallel_, model_name(), progress, reads,
      [this](const SampleCounts& sizes) { return open_datasets(sizes); },
      [this](const SampleDataset& dataset, const SampleGroup& group, Split split, int64_t chunk) {
        return make_batch(dataset, group, split, chunk);
      });
}

TextMicrobatch ModelTask::part_of(TextMicrobatch whole, int64_t chunk, Split split) const {
  const TransformerConfig& config = config_.transformer;
  const ChunkEnds& ends = model(chunk).ends();
  const auto prepare = [&](RowIds& ids, bool is_read, int64_t rows, const char* what) {
    if (ids.defined()) ids = is_read ? prepared_ids(ids.ids, rows, what) : RowIds();
    if (split != Split::kTrain) ids.order = {};
  };
  ModelInput& input = whole.input;
  prepare(input.tokens, ends.embeds_tokens, config.padded_vocab_size, "token id");
  prepare(input.token_types, ends.embeds_tokens && config.tokentypes() > 0, config.tokentypes(),
          "token type");
  prepare(input.decoder_tokens, ends.embeds_decoder_tokens, config.padded_vocab_size, "token id");
  prepare(input.neighbor_tokens, true, config.padded_vocab_size, "token id of a neighbour");
  if (!ends.has_head) input.future.clear();
  for (FutureTokens& depth : input.future) {
    prepare(depth.tokens, true, config.padded_vocab_size, "token id");
  }
  if (config.position_embedding_type == PositionEmbedding::kLearnedAbsolute) {
    const int64_t positions = config.max_position_embeddings;
    prepare(input.position_ids, ends.embeds_tokens, positions, "position id");
    for (FutureTokens& depth : input.future) {
      prepare(depth.position_ids, true, positions, "position id");
    }
  }
  TokenTargets& targets = whole.targets;
  if (!ends.has_head) {
    targets = {};
    whole.future_targets.clear();
  }
  if (targets.labels.defined()) expect_labels(targets.labels, config.counted_vocab_size());
  if (config_.training.calculate_per_token_loss && weighs_tokens() && targets.loss_mask.defined() &&
      !targets.divisor.defined()) {
    const WeighedTokens counted = weighed_tokens(targets.loss_mask);
    targets.divisor = counted.divisor;
    targets.weight = counted.weight;
  }
  return whole;
}

Activations ModelTask::forward(ModelInput input, int64_t chunk,
                               std::span<const Variable> activations) const {
  const auto complete = [](RowIds& ids, const RowIds& tokens, const RowIds& fixed) {
    const bool is_usual = tokens.defined() && fixed.defined() &&
                          tokens.ids.shape() == fixed.ids.shape();  // the last batch may be smaller
    if (is_usual && !ids.defined()) ids = fixed;
  };
  complete(input.position_ids, input.tokens, positions_.position_ids);
  complete(input.decoder_position_ids, input.decoder_tokens, positions_.decoder_position_ids);
  complete(input.neighbor_position_ids, input.neighbor_tokens, positions_.neighbor_position_ids);
  return model(chunk).forward(input, activations, *random_);
}

MicrobatchOutput ModelTask::forward_step(Split, int64_t chunk, const Microbatch& batch,
                                         std::span<const Variable> activations) {
  auto [input, targets, future_targets] = batch.as<TextMicrobatch>();
  std::vector<Variable> auxiliary;
  if (grad_enabled()) input.auxiliary_losses = &auxiliary;
  Activations states = forward(std::move(input), chunk, activations);
  if (!model(chunk).ends().has_head) {
    return {.activations = std::move(states), .losses = std::move(auxiliary)};
  }
  targets.seed = loss_seed_;
  MicrobatchOutput output = loss(model(chunk), states.back(), targets);
  add_future_losses(output, model(chunk), states, future_targets);
  output.losses.insert(output.losses.end(), auxiliary.begin(), auxiliary.end());
  output.weight = targets.weight;
  return output;
}

MicrobatchOutput ModelTask::loss(const Model& model, const Variable& hidden,
                                 const TokenTargets& targets) const {
  const Variable mean = token_loss(model, hidden, targets);
  return {.losses = {mean}, .logged = {{"lm loss", mean.data()}}};
}

void ModelTask::add_future_losses(MicrobatchOutput& output, const Model& model,
                                  std::span<const Variable> states,
                                  std::span<const TokenTargets> targets) const {
  const TransformerConfig& config = config_.transformer;
  for (size_t depth = 0; depth < targets.size(); ++depth) {
    TokenTargets of_depth = targets[depth];
    of_depth.seed = loss_seed_;
    VocabularyProduct logits = model.vocabulary_product(states[depth]);
    if (config.mtp_detach_heads) {
      logits.weight = logits.weight.detached();
      if (logits.bias.defined()) logits.bias = logits.bias.detached();
    }
    const Variable term = token_loss(model, logits, of_depth);
    Tensor mean = copied(term.data());
    scale_inplace(mean, static_cast<float>(static_cast<double>(config.mtp_num_layers) /
                                           config.mtp_loss_scaling_factor));
    output.losses.push_back(term);
    output.logged.emplace_back("mtp_" + std::to_string(depth + 1) + " loss", std::move(mean));
  }
}

int64_t ModelTask::tokens_per_sample() const {
  const TransformerConfig& c = config_.transformer;
  return sequence_length_ + (c.is_encoder_decoder() ? c.decoder_seq_length : 0);
}

double ModelTask::flops(int64_t batch_size) const {
  TransformerConfig config = config_.transformer;
  config.seq_length = sequence_length_;
  return config.is_encoder_decoder() ? encoder_decoder_flops(config, batch_size)
                                     : standard_flops(config, batch_size);
}

void ModelTask::close() {
  loaders_.close();
  models_.clear();
  positions_ = {};
}

std::map<std::string, ArgMap> ModelTask::recorded() const {
  return {{"tokenizer",
           {{"type", std::string(tokenizer_->type())}, {"vocab_size", tokenizer_->vocab_size()}}}};
}

}  // namespace megatron

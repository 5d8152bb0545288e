#include "megatron/models/gpt/gpt_task.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "megatron/data/gpt_dataset.h"
#include "megatron/data/prefix_lm.h"

namespace megatron {

GptTask::GptTask(const RunConfig& config, std::shared_ptr<const Tokenizer> tokenizer)
    : ModelTask(config, std::move(tokenizer)) {
  const CurriculumConfig& curriculum = config.training.curriculum;
  if (curriculum.is_on()) curriculum_.emplace(curriculum);
}

void GptTask::open_data(const Progress& progress) {
  begin_ = progress;
  ModelTask::open_data(progress);
}

SplitDatasets GptTask::open_datasets(const SampleCounts& sizes) const {
  return build_gpt_datasets(config().data, sizes, config().transformer.seq_length,
                            config().training.seed, tokenizer());
}

bool GptTask::reads_positions() const {
  return config().data.reset_position_ids || curriculum_ || parallel().context.size() > 1;
}

bool GptTask::reads_data(int64_t chunk) const {
  const ChunkEnds& ends = model(chunk).ends();
  const bool has_attention_bounds = config().data.reset_attention_mask || config().data.prefix_lm;
  return ends.embeds_tokens || ends.has_head || has_attention_bounds || reads_positions();
}

TextMicrobatch GptTask::make_batch(const SampleDataset& dataset, const SampleGroup& group,
                                   Split split, int64_t chunk) const {
  const DataConfig& data = config().data;
  const int64_t eod = tokenizer().eod();
  GptBatch batch = make_gpt_batch(dataset, group,
                                  {.eod = eod,
                                   .eod_mask_loss = data.eod_mask_loss,
                                   .reset_position_ids = data.reset_position_ids,
                                   .reset_attention_mask = data.reset_attention_mask,
                                   .neighbor_tokens = trailing_ids_per_sample()});
  if (data.prefix_lm) {
    add_prefixes(batch, split,
                 {.eod = eod,
                  .per_document = data.reset_attention_mask,
                  .loss_on_targets_only = data.loss_on_targets_only,
                  .reweight_loss = data.reweight_loss_based_on_position_frequency,
                  .seed = static_cast<uint64_t>(config().training.seed)});
  }
  adjust_batch(batch, split);
  if (split == Split::kTrain) shorten(batch);
  return part_of_batch(batch, chunk, split);
}

TextMicrobatch GptTask::part_of_batch(const GptBatch& whole, int64_t chunk, Split split) const {
  const ContextParallel& cp = parallel().context;
  std::optional<GptBatch> part;
  if (cp.size() > 1) part = chunks_of(whole, cp.chunks(), int64_t{2} * cp.size());
  const GptBatch& batch = part ? *part : whole;
  const Shape shape = {batch.micro_batch_size, batch.seq_length};
  TextMicrobatch made;
  ModelInput& input = made.input;
  input.tokens = tensor_of(batch.tokens, shape);
  if (reads_positions()) input.position_ids = tensor_of(batch.position_ids, shape);
  if (!batch.document_starts.empty()) {
    const ContextParallel ring = cp.ring();
    std::optional<GptBatch> part_of_ring;
    if (ring.size() > 1) part_of_ring = chunks_of(whole, ring.chunks(), int64_t{2} * ring.size());
    const GptBatch& seen = part_of_ring ? *part_of_ring : whole;
    input.document_starts =
        tensor_of(seen.document_starts, {seen.micro_batch_size, seen.seq_length});
  }
  if (!batch.prefix_ends.empty()) input.prefix_ends = tensor_of(batch.prefix_ends, shape);
  if (!batch.neighbor_tokens.empty()) {
    const int64_t r = config().transformer.retro.neighbor_length();
    const auto count = static_cast<int64_t>(batch.neighbor_tokens.size());
    input.neighbor_tokens = tensor_of(batch.neighbor_tokens, {count / r, r});
    if (batch.chunk_length > 0) {
      input.chunk_rows = Tensor({batch.chunk_length, 0}, DType::kInt64, Stream{});
    }
  }
  made.targets = {.labels = tensor_of(batch.labels, shape),
                  .loss_mask = tensor_of(batch.loss_mask, shape)};
  // Weights of tokens are counted in each part, and have no divisor of the whole.
  const bool counts_tokens = config().training.calculate_per_token_loss && whole.loss_divisor == 0;
  if (batch.loss_divisor > 0 && !counts_tokens) {
    made.targets.divisor = tensor_of(std::vector{batch.loss_divisor}, {});
  }
  if (split == Split::kTrain && model(chunk).ends().has_head) add_future(made, whole);
  return part_of(std::move(made), chunk, split);
}

void GptTask::add_future(TextMicrobatch& made, const GptBatch& whole) const {
  const TransformerConfig& c = config().transformer;
  const ContextParallel& cp = parallel().context;
  const auto sum_of = [](const std::vector<float>& mask) {
    return std::accumulate(mask.begin(), mask.end(), 0.0F);
  };
  GptBatch shifted = whole;
  for (int64_t depth = 0; depth < c.mtp_num_layers; ++depth) {
    shifted = shifted_by_one(std::move(shifted));
    std::optional<GptBatch> part;
    if (cp.size() > 1) part = chunks_of(shifted, cp.chunks(), int64_t{2} * cp.size());
    const GptBatch& batch = part ? *part : shifted;
    const Shape shape = {batch.micro_batch_size, batch.seq_length};
    FutureTokens& future = made.input.future.emplace_back();
    future.tokens = tensor_of(batch.tokens, shape);
    if (c.position_embedding_type == PositionEmbedding::kLearnedAbsolute) {
      future.position_ids = tensor_of(batch.position_ids, shape);
    }
    const float counted = std::max(sum_of(shifted.loss_mask), 1.0F);
    float divisor = part && part->loss_divisor > 0 ? part->loss_divisor : counted;
    if (config().training.calculate_per_token_loss && whole.loss_divisor == 0) {
      // Means over all positions: the sums of the masks are weighed as those of the next token.
      divisor =
          static_cast<float>(shape.numel()) * counted / std::max(sum_of(whole.loss_mask), 1.0F);
    }
    divisor *=
        static_cast<float>(static_cast<double>(c.mtp_num_layers) / c.mtp_loss_scaling_factor);
    made.future_targets.push_back({.labels = tensor_of(batch.labels, shape),
                                   .loss_mask = tensor_of(batch.loss_mask, shape),
                                   .divisor = tensor_of(std::vector{divisor}, {})});
  }
}

int64_t GptTask::trailing_ids_per_sample() const {
  return config().transformer.retro.neighbor_tokens(config().transformer.seq_length);
}

void GptTask::adjust_batch(GptBatch&, Split) const {}

void GptTask::shorten(GptBatch& batch) const {
  if (!curriculum_) return;
  const int64_t read = batch.first_sample - begin_.consumed_train_samples;
  const int64_t iteration = begin_.iteration + 1 + read / config().training.global_batch_size;
  const int64_t length = curriculum_->length_at(iteration);
  if (length < batch.seq_length) batch = first_tokens(batch, length);
}

// The weights of a prefix LM's tokens are divided by what they are on average.
bool GptTask::weighs_tokens() const { return !config().data.prefix_lm; }

}  // namespace megatron

#include "megatron/models/gpt/gpt_step.h"

#include <optional>

#include "megatron/ops/cross_entropy.h"
#include "megatron/training/loss_sums.h"

namespace megatron {
namespace {

// Places in a Microbatch.
struct GptPart {
  enum Index : size_t {
    kTokens,
    kTokenOrder,
    kPositions,
    kPositionOrder,
    kDocumentStarts,
    kPrefixEnds,
    kNeighborTokens,
    kNeighborOrder,
    kChunkRows,  // [m, 0], which says m: the host knows shapes
    kLabels,
    kLossMask,
    kLossDivisor,
    kLossWeight,
    kNumParts
  };
};

}  // namespace

GptStep::GptStep(const GptModel& model, RandomState& random, const Options& options)
    : model_(model), random_(random), options_(options) {
  if (!has_position_table()) return;
  const TransformerConfig& config = model.config();
  const auto all_positions = [&](int64_t sequences, int64_t length) {
    return prepared_ids(default_position_ids(sequences, length), config.max_position_embeddings,
                        "position id")
        .to(model.stream());
  };
  if (!reads_positions()) {
    positions_ = all_positions(options.micro_batch_size, config.seq_length);
  }
  if (config.retro.reads_neighbors()) {
    neighbor_positions_ = all_positions(options.micro_batch_size * config.retro.num_neighbors *
                                            config.retro.num_chunks(config.seq_length),
                                        config.retro.neighbor_length());
  }
}

bool GptStep::has_position_table() const {
  return model_.chunk().has_embedding &&
         model_.config().position_embedding_type == PositionEmbedding::kLearnedAbsolute;
}

bool GptStep::reads_positions() const {
  return options_.reads_position_ids || model_.context_parallel().size() > 1;
}

bool GptStep::reads_data(bool has_attention_bounds) const {
  return model_.chunk().has_embedding || model_.chunk().has_head || has_attention_bounds ||
         reads_positions();
}

Microbatch GptStep::microbatch(const GptBatch& whole, bool has_gradient) const {
  const ContextParallel& cp = model_.context_parallel();
  std::optional<GptBatch> part;
  if (cp.size() > 1) part = chunks_of(whole, cp.chunks(), 2 * cp.size());
  const GptBatch& batch = part ? *part : whole;
  const TransformerConfig& config = model_.config();
  const Shape shape = {batch.micro_batch_size, batch.seq_length};
  Microbatch made(GptPart::kNumParts);
  const auto add_ids = [&](GptPart::Index ids, GptPart::Index order,
                           const std::vector<int64_t>& from, const Shape& of, int64_t rows,
                           const char* what) {
    const RowIds checked = prepared_ids(tensor_of(from, of), rows, what);
    made[ids] = checked.ids;
    if (has_gradient) made[order] = checked.order;
  };
  if (model_.chunk().has_embedding) {
    add_ids(GptPart::kTokens, GptPart::kTokenOrder, batch.tokens, shape, config.padded_vocab_size,
            "token id");
  }
  if (!batch.neighbor_tokens.empty()) {
    const int64_t r = config.retro.neighbor_length();
    const auto count = static_cast<int64_t>(batch.neighbor_tokens.size());
    add_ids(GptPart::kNeighborTokens, GptPart::kNeighborOrder, batch.neighbor_tokens,
            {count / r, r}, config.padded_vocab_size, "token id of a neighbour");
    if (batch.chunk_length > 0) {
      made[GptPart::kChunkRows] = Tensor({batch.chunk_length, 0}, DType::kInt64, Stream{});
    }
  }
  if (reads_positions() && has_position_table()) {
    add_ids(GptPart::kPositions, GptPart::kPositionOrder, batch.position_ids, shape,
            config.max_position_embeddings, "position id");
  } else if (reads_positions()) {
    made[GptPart::kPositions] = tensor_of(batch.position_ids, shape);
  }
  if (!batch.document_starts.empty()) {
    const bool has_all_positions = part && cp.exchange == ContextExchange::kAllToAll;
    made[GptPart::kDocumentStarts] =
        has_all_positions
            ? tensor_of(whole.document_starts, {whole.micro_batch_size, whole.seq_length})
            : tensor_of(batch.document_starts, shape);
  }
  if (!batch.prefix_ends.empty()) made[GptPart::kPrefixEnds] = tensor_of(batch.prefix_ends, shape);
  if (model_.chunk().has_head) {
    made[GptPart::kLabels] = tensor_of(batch.labels, shape);
    expect_labels(made[GptPart::kLabels], config.counted_vocab_size());
    made[GptPart::kLossMask] = tensor_of(batch.loss_mask, shape);
    if (options_.weighs_tokens && whole.loss_divisor == 0) {
      const WeighedTokens tokens = weighed_tokens(made[GptPart::kLossMask]);
      made[GptPart::kLossDivisor] = tokens.divisor;
      made[GptPart::kLossWeight] = tokens.weight;
    } else if (batch.loss_divisor > 0) {
      made[GptPart::kLossDivisor] = tensor_of(std::vector{batch.loss_divisor}, {});
    }
  }
  return made;
}

Variable GptStep::forward(const Microbatch& batch, const Variable& activations) const {
  GptInput input;
  if (!batch.empty()) {
    input = {.tokens = {batch[GptPart::kTokens], batch[GptPart::kTokenOrder]},
             .position_ids = {batch[GptPart::kPositions], batch[GptPart::kPositionOrder]},
             .document_starts = batch[GptPart::kDocumentStarts],
             .prefix_ends = batch[GptPart::kPrefixEnds],
             .neighbor_tokens = {batch[GptPart::kNeighborTokens], batch[GptPart::kNeighborOrder]},
             .neighbor_position_ids = neighbor_positions_};
    if (batch[GptPart::kChunkRows].defined()) {
      input.chunk_length = batch[GptPart::kChunkRows].size(0);
      input.neighbor_position_ids = {};  // those of the model's chunks
    }
  }
  if (positions_.defined()) input.position_ids = positions_;
  return model_.forward(input, activations, random_);
}

GptTargets GptStep::targets(const Microbatch& batch) const {
  return {.labels = batch[GptPart::kLabels],
          .loss_mask = batch[GptPart::kLossMask],
          .divisor = batch[GptPart::kLossDivisor],
          .weight = batch[GptPart::kLossWeight]};
}

}  // namespace megatron

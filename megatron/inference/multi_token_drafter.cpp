#include "megatron/inference/multi_token_drafter.h"

#include <fmt/format.h>

#include <algorithm>

#include "megatron/core/error.h"
#include "megatron/inference/engine_parts.h"

namespace megatron {
namespace {

// The token with this number, which may be a draft; the last one known if there is none yet.
int32_t token_at(const DraftText& text, std::span<const int32_t> drafts, int64_t at) {
  const auto known = std::ssize(text.tokens);
  if (at < known) return text.tokens[static_cast<size_t>(at)];
  if (drafts.empty()) return text.tokens.back();
  return drafts[static_cast<size_t>(std::min(at - known, std::ssize(drafts) - 1))];
}

}  // namespace

MultiTokenDrafter::MultiTokenDrafter(const InferenceModel& model, int64_t num_drafts,
                                     int64_t num_pages, int64_t page_tokens)
    : model_(model), num_drafts_(num_drafts) {
  const TransformerConfig& config = model.config();
  if (config.mtp_num_layers == 0) {
    throw ConfigError(
        "--speculative-method mtp needs a model with multi-token prediction (--mtp-num-layers), "
        "and this one has none; use ngram");
  }
  if (model.parallel.pipeline.size() > 1 &&
      (config.position_embedding_type == PositionEmbedding::kLearnedAbsolute ||
       config.embed_layernorm)) {
    throw ConfigError(
        "--speculative-method mtp of a model with a table of positions or --embed-layernorm needs "
        "--pipeline-model-parallel-size 1; use ngram");
  }
  if (num_drafts > config.mtp_num_layers) {
    throw ConfigError(
        fmt::format("--num-speculative-tokens {} with --speculative-method mtp must be at most {}, "
                    "the --mtp-num-layers of the model",
                    num_drafts, config.mtp_num_layers));
  }
  if (!model.parallel.is_last_stage()) return;
  for (int64_t k = 1; k <= num_drafts; ++k) {
    const ModelChunk chunk{.first_layer = layer_of_depth(config, k), .num_layers = 1};
    caches_.emplace_back(config, chunk, model.parallel.tensor.size(), num_pages, page_tokens,
                         model.stream(), model.kv_cache);
  }
}

std::vector<int32_t> MultiTokenDrafter::most_probable(const Variable& states,
                                                      const std::vector<int64_t>& ids) const {
  std::vector<double> values(ids.size());
  if (model_.parallel.is_last_stage()) {
    const Tensor logits = gathered_logits(model_, rows_of(states.data(), ids));
    if (draws(model_)) {
      kernels::Draw draw;
      draw.top_k = 1;
      draw.vocab_size = draw.known_size =
          static_cast<int32_t>(model_.config().counted_vocab_size());
      const DrawnTokens drawn = drawn_tokens(logits, std::vector(ids.size(), draw), {});
      values.assign(drawn.tokens.begin(), drawn.tokens.end());
    }
  }
  share(model_, values);
  std::vector<int32_t> tokens;
  tokens.reserve(values.size());
  for (const double value : values) tokens.push_back(static_cast<int32_t>(value));
  return tokens;
}

std::vector<std::vector<int32_t>> MultiTokenDrafter::propose(std::span<const DraftText> texts,
                                                             const Tensor& hidden) {
  const NoGrad no_grad;
  std::vector<std::vector<int32_t>> drafts(texts.size());
  std::vector<int64_t> ids, positions;
  std::vector<PagedRow> rows;
  for (const DraftText& text : texts) {
    rows.push_back({std::ssize(ids), text.count, text.begin, text.pages});
    for (int64_t i = 0; i < text.count; ++i) {
      ids.push_back(text.first_row + i);
      positions.push_back(text.begin + i);
    }
  }
  const Shape shape = {1, std::ssize(ids)};
  const int64_t last_position = max_positions(model_.config()) - 1;
  Variable states;
  if (model_.parallel.is_last_stage()) states = Variable(rows_of(hidden, ids));
  for (int64_t k = 1; k <= num_drafts_; ++k) {
    if (model_.parallel.is_last_stage()) {
      std::vector<int64_t> tokens, of_tokens;
      for (size_t i = 0; i < texts.size(); ++i) {
        for (int64_t at = texts[i].begin + k; at < texts[i].begin + k + texts[i].count; ++at) {
          tokens.push_back(token_at(texts[i], drafts[i], at));
          of_tokens.push_back(std::min(at, last_position));
        }
      }
      KvCache& cache = caches_[static_cast<size_t>(k - 1)];
      CachedBatch cached{cache, cache.batch_of(rows)};
      states = model_.gpt->forward_depth_cached(
          k, states,
          {.tokens = tensor_of(tokens, shape), .position_ids = tensor_of(of_tokens, shape)},
          tensor_of(positions, shape), cached);
    }
    std::vector<size_t> drafting;
    std::vector<int64_t> last;
    for (size_t i = 0; i < texts.size(); ++i) {
      if (texts[i].max_drafts < k || std::ssize(drafts[i]) < k - 1) continue;
      drafting.push_back(i);
      last.push_back(rows[i].first_token + rows[i].num_tokens - 1);
    }
    if (drafting.empty()) continue;
    const std::vector<int32_t> found = most_probable(states, last);
    for (size_t i = 0; i < found.size(); ++i) {
      if (found[i] != kernels::kNoToken) drafts[drafting[i]].push_back(found[i]);
    }
  }
  return drafts;
}

}  // namespace megatron

#include "megatron/inference/multi_token_drafter.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "megatron/core/error.h"
#include "megatron/inference/engine_parts.h"
#include "megatron/ops/embedding.h"

namespace megatron {
namespace {

// The token with this number, which may be a draft; the last one known if there is none yet.
int32_t token_at(const DraftText& text, std::span<const int32_t> drafts, int64_t at) {
  const auto known = std::ssize(text.tokens);
  if (at < known) return text.tokens[static_cast<size_t>(at)];
  if (drafts.empty()) return text.tokens.back();
  return drafts[static_cast<size_t>(std::min(at - known, std::ssize(drafts) - 1))];
}

// Rows of a [m, 1, h] and, behind them, of b [n, 1, h], in any order.
Tensor picked_rows(const Tensor& a, const Tensor& b, const std::vector<int64_t>& ids) {
  Tensor both({a.size(0) + b.size(0), a.size(2)}, a.dtype(), a.stream());
  Tensor first = both.slice(0, a.size(0));
  Tensor rest = both.slice(a.size(0), b.size(0));
  copy_into(first, a.reshape({a.size(0), a.size(2)}));
  copy_into(rest, b.reshape({b.size(0), b.size(2)}));
  return embedding(Variable(both), tensor_of(ids, {1, std::ssize(ids)})).data();
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

std::vector<int32_t> MultiTokenDrafter::most_probable(const Tensor& states,
                                                      const std::vector<int64_t>& ids) const {
  std::vector<double> values(ids.size());
  if (model_.parallel.is_last_stage()) {
    const Tensor logits = gathered_logits(model_, rows_of(states, ids));
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

int64_t MultiTokenDrafter::first_read(const DraftText& text) const {
  const auto read = reads_.find(text.text);
  const bool goes_on = read != reads_.end() && read->second.end == text.begin;
  return goes_on ? read->second.first : text.begin;
}

// Depth k reads the new tokens of each text, and the k - 1 before whose further tokens were drafts.
MultiTokenDrafter::DepthInput MultiTokenDrafter::input_of(
    int64_t k, std::span<const DraftText> texts, std::span<const std::vector<int32_t>> drafts,
    std::span<const PagedRow> before, int64_t num_states) const {
  const int64_t last_position = max_positions(model_.config()) - 1;
  DepthInput input;
  for (size_t i = 0; i < texts.size(); ++i) {
    const DraftText& text = texts[i];
    const int64_t begin = std::max(first_read(text), text.begin - (k - 1));
    const int64_t end = text.begin + text.count;
    input.rows.push_back({std::ssize(input.states), end - begin, begin, text.pages});
    for (int64_t at = begin; at < end; ++at) {
      input.states.push_back(at < before[i].before ? num_states + reads_.at(text.text).row
                                                   : before[i].first_token + at - before[i].before);
      input.positions.push_back(at);
      input.tokens.push_back(token_at(text, drafts[i], at + k));
      input.token_positions.push_back(std::min(at + k, last_position));
    }
  }
  return input;
}

Tensor MultiTokenDrafter::states_of(int64_t k, const DepthInput& input, const Tensor& before) {
  const Tensor states = k > 1 && !ends_.empty()
                            ? picked_rows(before, ends_[static_cast<size_t>(k - 2)], input.states)
                            : rows_of(before, input.states);
  const Shape shape = {1, std::ssize(input.states)};
  KvCache& cache = caches_[static_cast<size_t>(k - 1)];
  CachedBatch cached{cache, cache.batch_of(input.rows)};
  return model_.gpt
      ->forward_depth_cached(k, Variable(states),
                             {.tokens = tensor_of(input.tokens, shape),
                              .position_ids = tensor_of(input.token_positions, shape)},
                             tensor_of(input.positions, shape), cached)
      .data();
}

std::vector<std::vector<int32_t>> MultiTokenDrafter::propose(std::span<const DraftText> texts,
                                                             const Tensor& hidden) {
  const NoGrad no_grad;
  const bool has_states = model_.parallel.is_last_stage();
  std::vector<std::vector<int32_t>> drafts(texts.size());
  std::vector<PagedRow> before;  // rows of `states`
  before.reserve(texts.size());
  for (const DraftText& text : texts) {
    before.push_back({text.first_row, text.count, text.begin, text.pages});
  }
  Tensor states = hidden;
  std::vector<Tensor> ends;
  for (int64_t k = 1; k <= num_drafts_; ++k) {
    DepthInput input = input_of(k, texts, drafts, before, has_states ? states.size(0) : 0);
    if (has_states) states = states_of(k, input, states);
    before = std::move(input.rows);
    std::vector<size_t> drafting;
    std::vector<int64_t> last, first_of_next;
    for (size_t i = 0; i < texts.size(); ++i) {
      const PagedRow& row = before[i];
      first_of_next.push_back(row.first_token + std::max<int64_t>(0, row.num_tokens - k));
      if (texts[i].max_drafts < k || std::ssize(drafts[i]) < k - 1) continue;
      drafting.push_back(i);
      last.push_back(row.first_token + row.num_tokens - 1);
    }
    if (has_states && k < num_drafts_) ends.push_back(rows_of(states, first_of_next));
    if (drafting.empty()) continue;
    const std::vector<int32_t> found = most_probable(states, last);
    for (size_t i = 0; i < found.size(); ++i) {
      if (found[i] != kernels::kNoToken) drafts[drafting[i]].push_back(found[i]);
    }
  }
  keep(texts, std::move(ends));
  return drafts;
}

void MultiTokenDrafter::keep(std::span<const DraftText> texts, std::vector<Tensor> ends) {
  std::map<int64_t, Read> reads;
  for (int64_t i = 0; i < std::ssize(texts); ++i) {
    const DraftText& text = texts[static_cast<size_t>(i)];
    reads[text.text] = {.row = i, .first = first_read(text), .end = text.begin + text.count};
  }
  reads_ = std::move(reads);
  ends_ = std::move(ends);
}

}  // namespace megatron

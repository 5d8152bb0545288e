#include "megatron/inference/generate.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>

#include "megatron/core/error.h"
#include "megatron/ops/cross_entropy.h"
#include "megatron/tensor/tensor.h"

namespace megatron {
namespace {

// Positions whose logits are in memory at once while scoring.
constexpr int64_t kScoreChunk = 256;

void check_ids(std::span<const int32_t> ids, int64_t vocab_size) {
  for (const int32_t id : ids) {
    if (id >= 0 && id < vocab_size) continue;
    throw ConfigError(fmt::format(
        "token id {} is not in the model's vocabulary of {}; use the tokenizer it was trained with",
        id, vocab_size));
  }
}

void check_length(int64_t length, const TransformerConfig& config) {
  const int64_t limit = std::max(config.max_position_embeddings, config.seq_length);
  if (config.position_embedding_type == PositionEmbedding::kAlibi || length <= limit) return;
  throw ConfigError(fmt::format(
      "{} tokens (prompt and new ones) are more than the {} positions of the model; shorten the "
      "prompt or lower --max-new-tokens",
      length, limit));
}

// One [s, b] column block of a token matrix: tokens [b, total] rows from `begin` to `end`.
Tensor block_of(const std::vector<Generation>& rows, int64_t begin, int64_t end) {
  std::vector<int64_t> ids;
  for (const Generation& row : rows) {
    for (int64_t i = begin; i < end; ++i) {
      // A finished row goes on with its last token; nobody reads what comes of it.
      const auto at = std::min(static_cast<size_t>(i), row.tokens.size() - 1);
      ids.push_back(row.tokens[at]);
    }
  }
  return tensor_of(ids, {static_cast<int64_t>(rows.size()), end - begin});
}

// Logits of the positions [begin, begin + count) of hidden [s, b, h], in fp32: [count, b, v].
Tensor logits_of(const GptModel& model, const Variable& hidden, int64_t begin, int64_t count) {
  const Tensor part = hidden.data().slice(begin, count);
  return cast(model.all_logits(Variable(part)), DType::kFloat32).to(Stream{});
}

std::span<const float> row_of(const Tensor& logits, int64_t position, size_t row, int64_t width) {
  const auto stride = static_cast<size_t>(logits.size(-1));
  const auto index = static_cast<size_t>(position * logits.size(1)) + row;
  return logits.span<float>().subspan(index * stride, static_cast<size_t>(width));
}

}  // namespace

std::vector<Generation> generate(const GptModel& model,
                                 std::span<const std::vector<int32_t>> prompts,
                                 const GenerateOptions& options, const TokenSink& on_token) {
  const TransformerConfig& config = model.config();
  const int64_t vocab_size = options.vocab_size > 0 ? options.vocab_size : config.padded_vocab_size;
  std::vector<Generation> rows;
  int64_t shortest = std::numeric_limits<int64_t>::max();
  int64_t longest = 0;
  for (const std::vector<int32_t>& prompt : prompts) {
    if (prompt.empty()) throw ConfigError("a prompt has no tokens; give it some text");
    check_ids(prompt, vocab_size);
    const auto length = static_cast<int64_t>(prompt.size());
    shortest = std::min(shortest, length);
    longest = std::max(longest, length);
    rows.push_back({.tokens = prompt, .prompt_length = length});
  }
  if (rows.empty() || options.max_new_tokens <= 0) return rows;
  const int64_t total = longest + options.max_new_tokens;
  check_length(total, config);

  const NoGrad no_grad;
  RandomState random(options.seed);
  random.set_training(false);
  const auto batch = static_cast<int64_t>(rows.size());
  KvCache cache(config, model.tensor_parallel().size(), batch, total, model.stream());

  size_t num_open = rows.size();
  const auto is_open = [&](const Generation& row) {
    return !row.is_stopped &&
           static_cast<int64_t>(row.tokens.size()) < row.prompt_length + options.max_new_tokens;
  };
  int64_t seen = 0;
  for (int64_t end = shortest; end < total && num_open > 0; ++end) {
    const Tensor block = block_of(rows, seen, end);
    const Variable hidden = model.hidden_states({.tokens = block}, random, &cache);  // [n, b, h]
    const int64_t first = options.return_log_probabilities ? 0 : end - seen - 1;
    const Tensor logits = logits_of(model, hidden, first, end - seen - first);
    seen = end;

    num_open = 0;
    for (size_t r = 0; r < rows.size(); ++r) {
      Generation& row = rows[r];
      const bool draws = end >= row.prompt_length;
      if (draws && is_open(row)) {
        const int64_t step = end - row.prompt_length;
        const auto candidates = row_of(logits, logits.size(0) - 1, r, vocab_size);
        const auto token = static_cast<int32_t>(
            sample(candidates, options.sampling, top_p_at(options.sampling, step),
                   sampling_uniform(options.seed, static_cast<int64_t>(r), step)));
        row.tokens.push_back(token);
        row.is_stopped = std::find(options.stop_tokens.begin(), options.stop_tokens.end(), token) !=
                         options.stop_tokens.end();
        if (on_token) on_token(r, token);
      }
      if (options.return_log_probabilities) {
        for (int64_t i = 0; i < logits.size(0); ++i) {
          const auto next = static_cast<size_t>(end - logits.size(0) + i + 1);
          if (next >= row.tokens.size()) break;
          const auto all = row_of(logits, i, r, config.padded_vocab_size);
          row.log_probabilities.push_back(log_probability(all, row.tokens[next]));
        }
      }
      if (is_open(row)) ++num_open;
    }
  }
  return rows;
}

Score score(const GptModel& model, std::span<const int32_t> ids) {
  if (ids.size() < 2) {
    throw ConfigError("a text of fewer than two tokens has no likelihood; give a longer one");
  }
  check_ids(ids, model.config().padded_vocab_size);
  const auto length = static_cast<int64_t>(ids.size()) - 1;
  check_length(length, model.config());

  const NoGrad no_grad;
  RandomState random(0);
  random.set_training(false);
  const std::vector<int64_t> inputs(ids.begin(), ids.end() - 1);
  const std::vector<int64_t> labels(ids.begin() + 1, ids.end());
  const Variable hidden =
      model.hidden_states({.tokens = tensor_of(inputs, {1, length})}, random);  // [s, 1, h]

  Score result;
  for (int64_t begin = 0; begin < length; begin += kScoreChunk) {
    const int64_t count = std::min(kScoreChunk, length - begin);
    const auto targets =
        std::span(labels).subspan(static_cast<size_t>(begin), static_cast<size_t>(count));
    const Tensor logits = model.logits(Variable(hidden.data().slice(begin, count))).data();
    const Tensor found = log_probabilities(logits, tensor_of<int64_t>(targets, {1, count}),
                                           vocabulary_shard(logits, model.tensor_parallel()))
                             .to(Stream{});
    for (const float value : found.span<float>()) {
      result.log_probabilities.push_back(value);
      result.loss -= value;
    }
  }
  result.loss /= static_cast<double>(length);
  return result;
}

}  // namespace megatron

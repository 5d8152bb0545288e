#include "megatron/inference/generate.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

#include "megatron/comm/collectives.h"
#include "megatron/core/error.h"
#include "megatron/ops/cross_entropy.h"
#include "megatron/parallel/tensor/mappings.h"
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

void check_length(int64_t length, int64_t new_tokens, const TransformerConfig& config) {
  const int64_t limit = std::max(config.max_position_embeddings, config.seq_length);
  if (config.position_embedding_type == PositionEmbedding::kAlibi || length <= limit) return;
  throw ConfigError(fmt::format(
      "{} tokens{} are more than the {} positions of the model; {}", length,
      new_tokens > 0 ? fmt::format(", {} of them new,", new_tokens) : "", limit,
      new_tokens > 0 ? "shorten the prompt or ask for fewer new tokens (--max-new-tokens)"
                     : "cut the text into shorter ones"));
}

// One [s, b] column block of a token matrix: tokens [b, total] rows from `begin` to `end`.
Tensor block_of(const std::vector<Generation>& rows, int64_t begin, int64_t end) {
  std::vector<int64_t> ids;
  for (const Generation& row : rows) {
    for (int64_t i = begin; i < end; ++i) {
      // A finished row continues with its last token; its results are never read.
      const auto at = std::min(static_cast<size_t>(i), row.tokens.size() - 1);
      ids.push_back(row.tokens[at]);
    }
  }
  return tensor_of(ids, {static_cast<int64_t>(rows.size()), end - begin});
}

// The rank that draws, by its position in parallel.model: the first rank of the last stage.
int drawing_rank(const InferenceModel& model) {
  return model.parallel.tensor.size() * (model.parallel.pipeline.size() - 1);
}

bool draws(const InferenceModel& model) {
  return model.parallel.is_last_stage() && model.parallel.tensor.rank() == 0;
}

// Gives all ranks the x of the rank that draws. x is on the host.
void share(const InferenceModel& model, Tensor& x) {
  comm::broadcast(x.view(), drawing_rank(model), model.parallel.model, Stream{});
}

// Runs tokens [b, n] through this rank's stage, between the neighbours': [n, b, h], which is the
// whole model's on the last stage alone.
Variable pass(const InferenceModel& model, const Tensor& tokens, RandomState& random,
              KvCache* cache) {
  const GptModel& chunk = model.chunk;
  const TransformerConfig& config = chunk.config();
  const PipelineLinks& links = model.parallel.links;
  Variable x;
  if (!model.parallel.is_first_stage()) {
    Tensor received({tokens.size(1), tokens.size(0), config.hidden_size},
                    config.fp32_residual_connection ? DType::kFloat32 : config.params_dtype,
                    chunk.stream());
    comm::recv(received.view(), 1 - links.from_previous.rank(), links.from_previous,
               chunk.stream());
    x = Variable(std::move(received));
  }
  Variable y = chunk.forward({.tokens = tokens}, x, random, cache);
  if (!model.parallel.is_last_stage()) {
    comm::send(std::as_const(y).data().view(), 1 - links.to_next.rank(), links.to_next,
               chunk.stream());
  }
  return y;
}

// This rank's columns of the logits of positions [begin, begin + count) of hidden [s, b, h].
Tensor own_logits(const InferenceModel& model, const Variable& hidden, int64_t begin,
                  int64_t count) {
  return model.chunk.logits(Variable(hidden.data().slice(begin, count))).data();
}

// Logits of the last position of hidden [s, b, h] on the rank that draws, in fp32 on the host:
// [b, v]. Undefined on the other ranks, of which those of the last stage take part.
Tensor last_logits(const InferenceModel& model, const Variable& hidden) {
  if (!model.parallel.is_last_stage()) return {};
  const Tensor own = own_logits(model, hidden, hidden.size(0) - 1, 1);
  const Tensor all = gathered_last_axis(own, model.parallel.tensor.group);
  if (!draws(model)) return {};
  return cast(all, DType::kFloat32).to(Stream{}).reshape({all.size(1), all.size(2)});
}

// Of ids [b, n] at the first n positions of hidden [s, b, h]: [n, b] fp32 on the host of the rank
// that draws, a chunk of positions at a time. Undefined on the other ranks.
Tensor forced_log_probabilities(const InferenceModel& model, const Variable& hidden,
                                const Tensor& ids) {
  if (!model.parallel.is_last_stage()) return {};
  const int64_t b = ids.size(0);
  const int64_t n = ids.size(1);
  Tensor result({n, b}, DType::kFloat32, Stream{});
  for (int64_t begin = 0; begin < n; begin += kScoreChunk) {
    const int64_t count = std::min(kScoreChunk, n - begin);
    std::vector<int64_t> targets;
    for (int64_t row = 0; row < b; ++row) {
      const auto of_row = ids.slice(row, 1);
      const auto all = std::as_const(of_row).span<int64_t>();
      targets.insert(targets.end(), all.begin() + begin, all.begin() + begin + count);
    }
    const Tensor logits = own_logits(model, hidden, begin, count);
    const Tensor found = log_probabilities(
        logits, tensor_of(targets, {b, count}),
        vocabulary_shard(logits, model.parallel.tensor, model.chunk.config().counted_vocab_size()));
    if (!draws(model)) continue;
    Tensor part = result.slice(begin, count);
    copy_into(part, found.to(Stream{}));
  }
  return draws(model) ? result : Tensor();
}

std::span<const float> row_of(const Tensor& logits, size_t row, int64_t width) {
  const auto stride = static_cast<size_t>(logits.size(-1));
  return logits.span<float>().subspan(row * stride, static_cast<size_t>(width));
}

// Sends the results of the rank that draws to the others.
void share_log_probabilities(const InferenceModel& model, std::vector<Generation>& rows) {
  if (model.parallel.model.size() == 1) return;
  for (Generation& row : rows) {
    row.log_probabilities.resize(row.tokens.size() - 1);
    Tensor values =
        tensor_of(row.log_probabilities, {static_cast<int64_t>(row.log_probabilities.size())});
    if (values.numel() == 0) continue;
    share(model, values);
    const auto shared = std::as_const(values).span<double>();
    row.log_probabilities.assign(shared.begin(), shared.end());
  }
}

}  // namespace

std::vector<Generation> generate(const InferenceModel& model,
                                 std::span<const std::vector<int32_t>> prompts,
                                 const GenerateOptions& options, const TokenSink& on_token) {
  const GptModel& chunk = model.chunk;
  const TransformerConfig& config = chunk.config();
  const int64_t vocab_size =
      options.vocab_size > 0 ? options.vocab_size : config.counted_vocab_size();
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
  check_length(total, options.max_new_tokens, config);

  const NoGrad no_grad;
  RandomState random(options.seed);
  random.set_training(false);
  const auto batch = static_cast<int64_t>(rows.size());
  KvCache cache(config, chunk.chunk(), model.parallel.tensor.size(), batch, total, chunk.stream());

  size_t num_open = rows.size();
  const auto is_open = [&](const Generation& row) {
    return !row.is_stopped &&
           static_cast<int64_t>(row.tokens.size()) < row.prompt_length + options.max_new_tokens;
  };
  int64_t seen = 0;
  for (int64_t end = shortest; end < total && num_open > 0; ++end) {
    const Tensor block = block_of(rows, seen, end);
    const Variable hidden = pass(model, block, random, &cache);
    if (options.return_log_probabilities && end - seen > 1) {  // the beginning of all prompts
      const Tensor found = forced_log_probabilities(model, hidden, block_of(rows, seen + 1, end));
      for (int64_t i = 0; found.defined() && i < found.numel(); ++i) {
        const auto row = static_cast<size_t>(i % batch);
        rows[row].log_probabilities.push_back(found.span<float>()[static_cast<size_t>(i)]);
      }
    }
    const Tensor logits = last_logits(model, hidden);
    seen = end;

    // [b]: what each row draws; rows that do not draw have values that are never read.
    Tensor drawn = tensor_of(std::vector<int64_t>(rows.size(), 0), {batch});
    const auto is_drawn = [&](const Generation& row) {
      return end >= row.prompt_length && is_open(row);
    };
    for (size_t r = 0; r < rows.size() && logits.defined(); ++r) {
      if (!is_drawn(rows[r])) continue;
      const int64_t step = end - rows[r].prompt_length;
      drawn.span<int64_t>()[r] =
          sample(row_of(logits, r, vocab_size), options.sampling, top_p_at(options.sampling, step),
                 sampling_uniform(options.seed, static_cast<int64_t>(r), step));
    }
    share(model, drawn);

    num_open = 0;
    for (size_t r = 0; r < rows.size(); ++r) {
      Generation& row = rows[r];
      if (is_drawn(row)) {
        const auto token = static_cast<int32_t>(std::as_const(drawn).span<int64_t>()[r]);
        row.tokens.push_back(token);
        row.is_stopped = std::find(options.stop_tokens.begin(), options.stop_tokens.end(), token) !=
                         options.stop_tokens.end();
        if (on_token) on_token(r, token);
      }
      const auto next = static_cast<size_t>(end);
      if (options.return_log_probabilities && logits.defined() && next < row.tokens.size()) {
        row.log_probabilities.push_back(
            log_probability(row_of(logits, r, config.counted_vocab_size()), row.tokens[next]));
      }
      if (is_open(row)) ++num_open;
    }
  }
  if (options.return_log_probabilities) share_log_probabilities(model, rows);
  return rows;
}

Score score(const InferenceModel& model, std::span<const int32_t> ids) {
  if (ids.size() < 2) {
    throw ConfigError("a text of fewer than two tokens has no likelihood; give a longer one");
  }
  check_ids(ids, model.chunk.config().counted_vocab_size());
  const auto length = static_cast<int64_t>(ids.size()) - 1;
  check_length(length, 0, model.chunk.config());

  const NoGrad no_grad;
  RandomState random(0);
  random.set_training(false);
  const std::vector<int64_t> inputs(ids.begin(), ids.end() - 1);
  const std::vector<int64_t> labels(ids.begin() + 1, ids.end());
  const Variable hidden = pass(model, tensor_of(inputs, {1, length}), random, nullptr);
  Tensor found = forced_log_probabilities(model, hidden, tensor_of(labels, {1, length}));
  if (!found.defined()) found = Tensor({length, 1}, DType::kFloat32, Stream{});
  share(model, found);

  Score result;
  for (const float value : std::as_const(found).span<float>()) {
    if (std::isnan(value)) throw Error(kNotANumber);
    result.log_probabilities.push_back(value);
    result.loss -= value;
  }
  result.loss /= static_cast<double>(length);
  return result;
}

}  // namespace megatron

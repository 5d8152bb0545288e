#include "megatron/inference/model_step.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "megatron/core/error.h"
#include "megatron/device/staging.h"
#include "megatron/inference/stages.h"
#include "megatron/ops/cross_entropy.h"
#include "megatron/ops/workspace.h"
#include "megatron/parallel/tensor/mappings.h"

namespace megatron {
namespace {

// Positions whose logits are in memory at once while scoring.
constexpr int64_t kScoreChunk = 256;

// This rank's columns of the logits of positions [begin, begin + count) of hidden [s, b, h].
Tensor own_logits(const InferenceModel& model, const Tensor& hidden, int64_t begin, int64_t count) {
  return model.chunk->logits(Variable(hidden.slice(begin, count))).data();
}

// The most probable tokens below `known` of each row of logits [r, 1, v].
void append_most_probable(const Tensor& logits, int64_t count, int64_t known,
                          std::vector<kernels::TokenLogProbability>& found) {
  const auto rows = static_cast<size_t>(logits.size(0));
  const auto num_top = static_cast<size_t>(count);
  if (count < kernels::kMaxLogProbabilities) {
    kernels::Draw draw;
    draw.top_k = 1;
    draw.vocab_size = draw.known_size = static_cast<int32_t>(known);
    draw.num_probabilities = 1 + static_cast<int32_t>(count);
    const DrawnTokens drawn = drawn_tokens(logits, std::vector<kernels::Draw>(rows, draw), {});
    for (size_t row = 0; row < rows; ++row) {
      const auto of_row = drawn.probabilities_of(row).subspan(1, num_top);
      found.insert(found.end(), of_row.begin(), of_row.end());
    }
    return;
  }
  const Tensor here = on_host(logits);
  std::vector<kernels::TokenLogProbability> of_row(1 + num_top);
  for (size_t row = 0; row < rows; ++row) {
    const auto width = static_cast<size_t>(here.size(1));
    kernels::cpu::find_probabilities(
        of_row, std::as_const(here).span<float>().subspan(row * width, static_cast<size_t>(known)),
        0);
    found.insert(found.end(), of_row.begin() + 1, of_row.end());
  }
}

}  // namespace

bool draws(const InferenceModel& model) { return is_head_rank(model.parallel); }

void share(const InferenceModel& model, Tensor& x) { share_from_head(model.parallel, x); }

void share(const InferenceModel& model, std::vector<double>& values) {
  if (model.parallel.model.size() == 1 || values.empty()) return;
  share_from_head(
      model.parallel,
      TensorView{values.data(), {static_cast<int64_t>(values.size())}, DType::kFloat64});
}

Variable run_stages(const InferenceModel& model, const ModelInput& input, CachedBatch* cached) {
  invariant(model.gpt != nullptr, "tokens without a text of an encoder are read by a GPT");
  const Shape& ids = input.tokens.ids.shape();
  RandomState random(0);
  random.set_training(false);
  random.set_training(false);
  const Variable x =
      received_activations(model.parallel, model.config(), ids[1], ids[0], model.stream());
  Variable y = cached != nullptr ? model.gpt->forward_cached(input, x, random, *cached)
                                 : model.gpt->forward(input, {&x, 1}, random).back();
  send_to_next(model.parallel, y);
  return y;
}

Tensor gathered_logits(const InferenceModel& model, const Tensor& hidden) {
  if (!model.parallel.is_last_stage()) return {};
  const Tensor own = own_logits(model, hidden, 0, hidden.size(0));
  const Tensor all = gathered_last_axis(own, model.parallel.tensor.group);
  return draws(model) ? all : Tensor();
}

Tensor on_host(const Tensor& logits) {
  if (!logits.defined()) return {};
  return cast(logits, DType::kFloat32).to(Stream{}).reshape({logits.size(0), logits.size(2)});
}

bool wants_probabilities(std::span<const kernels::Draw> draws) {
  return std::any_of(draws.begin(), draws.end(),
                     [](const kernels::Draw& draw) { return draw.num_probabilities > 0; });
}

Tensor probabilities_of_rows(int64_t rows, Stream stream) {
  constexpr auto kBytes = static_cast<int64_t>(sizeof(kernels::TokenLogProbability));
  return zeros({rows, kernels::kMaxLogProbabilities * kBytes}, DType::kUInt8, stream);
}

void draw_tokens(Tensor& tokens, Tensor& probabilities, const Tensor& logits, const Tensor& draws,
                 const kernels::DrawTexts& texts) {
  const Stream stream = logits.stream();
  const ConstView rows = logits.rows();
  Workspace workspace(kernels::draw_workspace_bytes(rows.size(0), rows.size(1), stream), stream);
  Tensor found;
  if (probabilities.defined()) found = probabilities.slice(0, rows.size(0));
  kernels::draw_tokens(
      tokens.slice(0, rows.size(0)).view(), found.defined() ? found.view() : TensorView{}, rows,
      {draws.view().data, {draws.bytes()}, DType::kUInt8}, texts, workspace.view(), stream);
}

DrawnTokens drawn_tokens(const Tensor& logits, std::span<const kernels::Draw> draws,
                         const kernels::DrawTexts& texts) {
  const auto bytes = static_cast<int64_t>(draws.size_bytes());
  Tensor near({bytes}, DType::kUInt8, logits.stream());
  upload_bytes(near.view().data, draws.data(), bytes, logits.stream());
  Tensor tokens({logits.size(0)}, DType::kInt32, logits.stream());
  Tensor probabilities;
  if (wants_probabilities(draws)) {
    probabilities = probabilities_of_rows(logits.size(0), logits.stream());
  }
  draw_tokens(tokens, probabilities, logits, near, texts);
  const Tensor here = tokens.to(Stream{});
  const auto all = here.span<int32_t>();
  DrawnTokens drawn{{all.begin(), all.end()}};
  if (!probabilities.defined()) return drawn;
  const Tensor found = probabilities.to(Stream{});
  const auto* const first = static_cast<const kernels::TokenLogProbability*>(found.view().data);
  drawn.probabilities.assign(first, first + logits.size(0) * kernels::kMaxLogProbabilities);
  return drawn;
}

Tensor forced_log_probabilities(const InferenceModel& model, const Tensor& hidden,
                                const Tensor& ids, int64_t num_top,
                                std::vector<kernels::TokenLogProbability>* top) {
  invariant(num_top == 0 || ids.size(0) == 1, "the most probable tokens are those of one text");
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
    const Tensor found = log_probabilities(logits, tensor_of(targets, {b, count}),
                                           vocabulary_shard(logits.size(-1), model.parallel.tensor,
                                                            model.config().counted_vocab_size()));
    Tensor whole;
    if (num_top > 0) whole = gathered_last_axis(logits, model.parallel.tensor.group);
    if (!draws(model)) continue;
    Tensor part = result.slice(begin, count);
    copy_into(part, found.to(Stream{}));
    if (num_top == 0) continue;
    const auto of_targets = std::as_const(part).span<float>();
    const size_t first = top->size();
    append_most_probable(whole, num_top, model.config().counted_vocab_size(), *top);
    for (size_t i = first; i < top->size(); ++i) {
      const size_t position = (i - first) / static_cast<size_t>(num_top);
      if ((*top)[i].token == targets[position]) (*top)[i].log_probability = of_targets[position];
    }
  }
  return draws(model) ? result : Tensor();
}

void check_ids(std::span<const int32_t> ids, int64_t vocab_size) {
  for (const int32_t id : ids) {
    if (id >= 0 && id < vocab_size) continue;
    throw ConfigError(fmt::format(
        "token id {} is not in the model's vocabulary of {}; use the tokenizer it was trained with",
        id, vocab_size));
  }
}

int64_t max_positions(const TransformerConfig& config) {
  if (config.position_embedding_type == PositionEmbedding::kAlibi ||
      config.position_embedding_type == PositionEmbedding::kRelative) {
    return int64_t{1} << 24;  // more is a typo that would exhaust memory
  }
  return std::max(config.max_position_embeddings, config.seq_length);
}

void check_length(int64_t length, int64_t new_tokens, const TransformerConfig& config) {
  const int64_t limit = max_positions(config);
  if (length <= limit) return;
  throw ConfigError(fmt::format(
      "{} tokens{} are more than the {} positions of the model; {}", length,
      new_tokens > 0 ? fmt::format(", {} of them new,", new_tokens) : "", limit,
      new_tokens > 0 ? "shorten the prompt or ask for fewer new tokens (--max-new-tokens)"
                     : "cut the text into shorter ones"));
}

}  // namespace megatron

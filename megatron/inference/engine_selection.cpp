// Selection of tokens from a step's hidden states, as values that one rank broadcasts.
#include <algorithm>
#include <cmath>

#include "megatron/inference/beam_candidates.h"
#include "megatron/inference/engine_parts.h"
#include "megatron/ops/embedding.h"

namespace megatron {
namespace {

constexpr float kForbidden = -1e10f;  // Megatron-LM's
constexpr float kInfinity = std::numeric_limits<float>::infinity();

std::span<float> row_of(Tensor& logits, int64_t row, int64_t width) {
  return logits.span<float>().subspan(static_cast<size_t>(row * logits.size(-1)),
                                      static_cast<size_t>(width));
}

bool has_nan(std::span<const float> logits) {
  return std::any_of(logits.begin(), logits.end(), [](float x) { return std::isnan(x); });
}

void forbid(std::span<float> logits, const Request& request, std::span<const int32_t> tokens) {
  if (!request.never_after || tokens.back() != request.never_after->first) return;
  const auto id = static_cast<size_t>(request.never_after->second);
  if (id < logits.size()) logits[id] = kForbidden;
}

int64_t drawn_token(const Request& request, std::span<const int32_t> tokens,
                    std::span<const float> logits) {
  std::vector<float> adjusted(logits.begin(), logits.begin() + request.vocab_size);
  const auto prompt_length = static_cast<int64_t>(request.prompt.size());
  const int64_t step = static_cast<int64_t>(tokens.size()) - prompt_length;
  adjust_logits(adjusted, request.sampling, tokens, prompt_length);
  if (step < request.min_new_tokens) {
    for (const int32_t id : request.stop_tokens) {
      if (id < request.vocab_size) adjusted[static_cast<size_t>(id)] = -kInfinity;
    }
  }
  if (request.constraint != nullptr) {
    request.constraint->forbid(adjusted, tokens.subspan(static_cast<size_t>(prompt_length)));
  }
  return sample(adjusted, request.sampling, top_p_at(request.sampling, step),
                sampling_uniform(request.seed, request.row, step));
}

}  // namespace

Tensor rows_of(const Tensor& hidden, const std::vector<int64_t>& ids) {
  if (static_cast<int64_t>(ids.size()) == hidden.size(0)) return hidden;
  const Variable table(hidden.reshape({hidden.size(0), hidden.size(2)}));
  return embedding(table, tensor_of(ids, {1, static_cast<int64_t>(ids.size())})).data();
}

bool draws_on_device(const Request& request, int64_t step) {
  const bool may_stop = request.stop_tokens.empty() || step >= request.min_new_tokens;
  return request.sampling.logit_bias.empty() && !request.never_after && may_stop &&
         !request.beams && !request.is_constrained &&
         request.num_top < kernels::kMaxLogProbabilities;
}

kernels::Draw draw_of(const Request& request, int64_t step, int64_t known_size) {
  kernels::Draw draw = draw_of(request.sampling, top_p_at(request.sampling, step),
                               sampling_uniform(request.seed, request.row, step),
                               request.vocab_size, static_cast<int64_t>(request.prompt.size()));
  draw.known_size = static_cast<int32_t>(known_size);
  if (request.return_log_probabilities || request.num_top > 0) {
    draw.num_probabilities = 1 + static_cast<int32_t>(request.num_top);
  }
  return draw;
}

void append_drawn(const Request& request, int32_t token,
                  std::span<const kernels::TokenLogProbability> found,
                  std::vector<double>& values) {
  values.push_back(token == kernels::kNoToken ? kNotDrawn : token);
  const auto num_top = static_cast<size_t>(request.num_top);
  const size_t end = values.size() + (request.return_log_probabilities ? 1 : 0) + 2 * num_top;
  if (token != kernels::kNoToken) {
    if (request.return_log_probabilities) values.push_back(found.front().log_probability);
    for (size_t i = 1; i <= num_top; ++i) {
      values.push_back(static_cast<double>(found[i].token));
      values.push_back(found[i].log_probability);
    }
  }
  values.resize(end);
}

bool stops(const Request& request, std::span<const int32_t> tokens) {
  const auto& ids = request.stop_tokens;
  if (std::find(ids.begin(), ids.end(), tokens.back()) != ids.end()) return true;
  return std::any_of(request.stop_sequences.begin(), request.stop_sequences.end(),
                     [&](const std::vector<int32_t>& sequence) {
                       if (sequence.empty() || sequence.size() > tokens.size()) return false;
                       return std::equal(sequence.rbegin(), sequence.rend(), tokens.rbegin());
                     });
}

// Number of values of a part: log-probabilities of the prompt, the most probable tokens there, then
// each drawn token and its log-probabilities.
int64_t Engine::num_values(const Part& part) const {
  const Request& request = part.group->request;
  if (request.pooling) return part.is_pooled() ? model_.config().hidden_size : 0;
  int64_t count = part.num_forced * (1 + 2 * request.num_top);
  if (!part.draws) return count;
  if (!part.group->beams) {
    const int64_t width = 1 + (request.return_log_probabilities ? 1 : 0) + 2 * request.num_top;
    return count + part.num_draws() * width;
  }
  return count + (part.is_first ? 3 * part.group->beams->num_candidates() : 0);
}

// True if every part that draws can do so on the device.
bool Engine::all_draw_on_device(std::span<const Part> parts) {
  return std::all_of(parts.begin(), parts.end(), [](const Part& part) {
    return !part.draws || draws_on_device(part.group->request, part.step(0));
  });
}

// Draws for the parts that the device can draw for; the others get no token.
DrawnTokens Engine::drawn_by_device(std::span<const Part> parts, const Tensor& logits) {
  std::vector<kernels::Draw> draws;
  std::vector<int32_t> pages, lengths;
  size_t most_pages = 1;
  for (const Part& part : parts) most_pages = std::max(most_pages, part.row->pages.size());
  for (const Part& part : parts) {
    const Request& request = part.group->request;
    for (int64_t ahead = 0; ahead < part.num_draws(); ++ahead) {
      const int64_t step = part.step(ahead);
      draws.push_back(draws_on_device(request, step)
                          ? draw_of(request, step, model_.config().counted_vocab_size())
                          : kernels::Draw{});
      pages.insert(pages.end(), part.row->pages.begin(), part.row->pages.end());
      pages.resize(draws.size() * most_pages);
      lengths.push_back(static_cast<int32_t>(std::ssize(part.row->tokens) + ahead));
    }
  }
  const auto rows = std::ssize(draws);
  const bool reads_texts = std::any_of(
      draws.begin(), draws.end(), [](const kernels::Draw& draw) { return draw.has_penalty(); });
  if (!reads_texts) return drawn_tokens(logits, draws, {});
  const Tensor table =
      tensor_of(pages, {rows, static_cast<int64_t>(most_pages)}).to(logits.stream());
  const Tensor text_lengths = tensor_of(lengths, {rows}).to(logits.stream());
  return drawn_tokens(
      logits, draws,
      {.ids = cache_.ids().view(), .pages = table.view(), .lengths = text_lengths.view()});
}

// Appends the sum of the part's hidden states that its embedding wants, [h].
void Engine::append_pooled(const Part& part, const Tensor& hidden,
                           std::vector<double>& values) const {
  const Pooling pooling = *part.group->request.pooling;
  const int64_t first = part.first_token + (pooling == Pooling::kLast ? part.count - 1 : 0);
  const int64_t rows = pooling == Pooling::kMean ? part.count : 1;
  const Tensor states = cast(hidden.slice(first, rows), DType::kFloat32).to(Stream{});
  const std::span<const float> all = states.span<float>();
  const auto width = static_cast<size_t>(hidden.size(2));
  const size_t begin = values.size();
  values.resize(begin + width);
  for (size_t i = 0; i < all.size(); ++i) values[begin + i % width] += static_cast<double>(all[i]);
}

std::vector<double> Engine::selected(std::span<const Part> parts, const Tensor& hidden) {
  int64_t count = 0;
  std::vector<int64_t> last_tokens;
  for (const Part& part : parts) {
    count += num_values(part);
    for (int64_t ahead = part.num_draws() - 1; ahead >= 0; --ahead) {
      last_tokens.push_back(part.first_token + part.count - 1 - ahead);
    }
  }
  std::vector<double> values;
  if (!model_.parallel.is_last_stage()) return std::vector<double>(static_cast<size_t>(count));
  const NoGrad no_grad;
  std::vector<Tensor> forced;
  std::vector<kernels::TokenLogProbability> top;
  for (const Part& part : parts) {
    if (part.num_forced == 0) continue;
    const auto first = part.row->tokens.begin() + part.first_forced + 1;
    const std::vector<int64_t> ids(first, first + part.num_forced);
    const int64_t begin = part.first_token + part.first_forced - part.begin;
    forced.push_back(forced_log_probabilities(model_, hidden.slice(begin, part.num_forced),
                                              tensor_of(ids, {1, part.num_forced}),
                                              part.group->request.num_top, &top));
  }
  Tensor logits;
  if (!last_tokens.empty()) logits = gathered_logits(model_, rows_of(hidden, last_tokens));
  if (!draws(model_)) return std::vector<double>(static_cast<size_t>(count));
  DrawnTokens drawn;
  Tensor here;  // logits of the rows drawn on the host
  std::vector<int64_t> rows_here;
  int64_t row = 0;
  for (const Part& part : parts) {
    for (int64_t ahead = 0; ahead < part.num_draws(); ++ahead, ++row) {
      if (!draws_on_device(part.group->request, part.step(ahead))) rows_here.push_back(row);
    }
  }
  if (std::ssize(rows_here) < row) drawn = drawn_by_device(parts, logits);
  if (!rows_here.empty()) here = on_host(rows_of(logits, rows_here));

  const int64_t known = model_.config().counted_vocab_size();
  size_t next_forced = 0;
  auto next_top = top.cbegin();
  size_t next_drawn = 0;
  int64_t next_here = 0;
  for (size_t i = 0; i < parts.size(); ++i) {
    const Part& part = parts[i];
    const Request& request = part.group->request;
    if (part.is_pooled()) append_pooled(part, hidden, values);
    if (part.num_forced > 0) {
      const auto found = std::as_const(forced[next_forced++]).span<float>();
      values.insert(values.end(), found.begin(), found.end());
      for (int64_t k = 0; k < part.num_forced * request.num_top; ++k, ++next_top) {
        values.push_back(next_top->token);
        values.push_back(next_top->log_probability);
      }
    }
    for (int64_t ahead = 0; ahead < part.num_draws(); ++ahead) {
      const size_t drawn_row = next_drawn++;
      if (draws_on_device(request, part.step(ahead))) {
        append_drawn(request, drawn.tokens[drawn_row], drawn.probabilities_of(drawn_row), values);
        continue;
      }
      const int64_t row_here = next_here++;
      if (!part.group->beams) {
        select_token(part, ahead, row_of(here, row_here, known), values);
      } else if (part.is_first) {
        select_beams(parts.subspan(i, part.group->rows.size()), here, row_here, values);
      }
    }
  }
  return values;
}

void Engine::select_token(const Part& part, int64_t ahead, std::span<float> logits,
                          std::vector<double>& values) const {
  const Request& request = part.group->request;
  std::vector<int32_t> tokens = part.row->tokens;
  tokens.insert(tokens.end(), part.row->drafts.begin(), part.row->drafts.begin() + ahead);
  if (has_nan(logits)) return append_drawn(request, kernels::kNoToken, {}, values);
  forbid(logits, request, tokens);
  const auto token = static_cast<int32_t>(drawn_token(request, tokens, logits));
  std::vector<kernels::TokenLogProbability> found;
  if (request.return_log_probabilities || request.num_top > 0) {
    found.resize(1 + static_cast<size_t>(request.num_top));
  }
  kernels::cpu::find_probabilities(found, logits, token);
  append_drawn(request, token, found, values);
}

void Engine::select_beams(std::span<const Part> parts, const Tensor& logits, int64_t first_row,
                          std::vector<double>& values) const {
  const BeamSearch& beams = *parts.front().group->beams;
  const Request& request = parts.front().group->request;
  const int64_t known = model_.config().counted_vocab_size();
  const auto count = static_cast<size_t>(beams.num_candidates());
  const size_t end = values.size() + 3 * count;
  std::vector<std::span<const float>> rows;
  Tensor edited = logits;
  for (size_t i = 0; i < parts.size(); ++i) {
    const std::span<float> row = row_of(edited, first_row + static_cast<int64_t>(i), known);
    if (has_nan(row)) {
      values.push_back(kNotDrawn);
      values.resize(end);
      return;
    }
    forbid(row, request, parts[i].row->tokens);
    rows.push_back(row);
  }
  const std::vector<BeamCandidate> candidates = best_candidates(beams, rows, request.vocab_size);
  for (const BeamCandidate& candidate : candidates) {
    values.push_back(static_cast<double>(candidate.beam));
    values.push_back(candidate.token);
    values.push_back(candidate.log_probability);
  }
  values.resize(end, kNotDrawn - 1);  // a small vocabulary has fewer candidates
}

}  // namespace megatron

#include "megatron/inference/generate.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "megatron/core/error.h"
#include "megatron/inference/make_drafter.h"

namespace megatron {
namespace {

// More rows in a batch take memory and save no time.
constexpr int64_t kMaxRows = 256;

// Room for all requests, or for the longest ones.
EngineOptions options_for(std::span<const Request> requests) {
  EngineOptions options;
  options.reuse_prefixes = false;
  int64_t longest = 0;
  int64_t total = 0;
  int64_t rows = 0;
  int64_t longest_text = 0;
  for (const Request& request : requests) {
    longest_text = std::max(longest_text, static_cast<int64_t>(request.text.size()));
    const int64_t width = request.beams ? request.beams->width : 1;
    const int64_t length = static_cast<int64_t>(request.prompt.size()) + request.max_new_tokens;
    // One more page for the copies of a beam search.
    const int64_t whole = width * (length / options.page_tokens + 2) * options.page_tokens;
    longest = std::max(longest, whole / width);
    total += whole;
    rows = std::max(rows, width);
  }
  options.max_rows =
      std::max(rows, std::min<int64_t>(kMaxRows, static_cast<int64_t>(requests.size())));
  options.cache_tokens = std::min(total, longest * options.max_rows);
  options.encoder_tokens = longest_text * options.max_rows;
  return options;
}

}  // namespace

std::vector<Generation> generate(const InferenceModel& model, std::span<const Request> requests,
                                 const TokenSink& on_token, const RowsToEnd& rows_to_end,
                                 const DraftOptions& drafts, EngineState* end) {
  std::vector<Generation> rows;
  if (requests.empty()) return rows;
  for (const Request& request : requests) {  // before memory is allocated for them
    const auto length = static_cast<int64_t>(request.prompt.size()) + request.max_new_tokens;
    check_length(length, request.max_new_tokens, model.config());
  }
  EngineOptions options = options_for(requests);
  options.drafter = make_drafter(drafts, model, options);
  Engine engine(model, options);
  for (const Request& request : requests) {
    rows.push_back(
        {.tokens = request.prompt, .prompt_length = static_cast<int64_t>(request.prompt.size())});
    engine.submit(request);
  }
  while (engine.has_work()) {
    for (const RequestProgress& progress : engine.step()) {
      const auto index = static_cast<size_t>(progress.id - 1);
      Generation& row = rows[index];
      if (progress.finish == Finish::kFailed) throw Error(kNotANumber);
      row.log_probabilities.insert(row.log_probabilities.end(),
                                   progress.prompt_log_probabilities.begin(),
                                   progress.prompt_log_probabilities.end());
      row.is_stopped = progress.finish == Finish::kStop;
      if (!progress.token) continue;
      row.tokens.push_back(*progress.token);
      if (requests[index].return_log_probabilities) {
        row.log_probabilities.push_back(progress.log_probability);
      }
      if (on_token) on_token(index, *progress.token);
    }
    if (!rows_to_end) continue;
    for (const size_t row : rows_to_end()) engine.cancel(static_cast<RequestId>(row) + 1);
  }
  if (end != nullptr) *end = engine.state();
  return rows;
}

std::vector<Generation> generate(const InferenceModel& model,
                                 std::span<const std::vector<int32_t>> prompts,
                                 const GenerateOptions& options, const TokenSink& on_token) {
  std::vector<Request> requests;
  for (const std::vector<int32_t>& prompt : prompts) {
    requests.push_back({.prompt = prompt,
                        .max_new_tokens = options.max_new_tokens,
                        .sampling = options.sampling,
                        .seed = options.seed,
                        .row = static_cast<int64_t>(requests.size()),
                        .vocab_size = options.vocab_size,
                        .stop_tokens = options.stop_tokens,
                        .return_log_probabilities = options.return_log_probabilities});
  }
  return generate(model, requests, on_token);
}

std::vector<Hypothesis> search_beams(const InferenceModel& model, const Request& request) {
  invariant(request.beams && request.max_new_tokens > 0, "a beam search has beams and new tokens");
  Engine engine(model, options_for({&request, 1}));
  engine.submit(request);
  std::vector<Hypothesis> result;
  while (engine.has_work()) {
    for (RequestProgress& progress : engine.step()) {
      if (progress.finish == Finish::kFailed) throw Error(kNotANumber);
      result = std::move(progress.hypotheses);
    }
  }
  for (Hypothesis& hypothesis : result) {
    hypothesis.tokens.insert(hypothesis.tokens.begin(), request.prompt.begin(),
                             request.prompt.end());
  }
  return result;
}

Score score(const InferenceModel& model, std::span<const int32_t> ids) {
  if (ids.size() < 2) {
    throw ConfigError("a text of fewer than two tokens has no likelihood; give a longer one");
  }
  check_ids(ids, model.config().counted_vocab_size());
  const auto length = static_cast<int64_t>(ids.size()) - 1;
  check_length(length, 0, model.config());

  const NoGrad no_grad;
  const std::vector<int64_t> inputs(ids.begin(), ids.end() - 1);
  const std::vector<int64_t> labels(ids.begin() + 1, ids.end());
  const Variable hidden = run_stages(model, {.tokens = tensor_of(inputs, {1, length})}, nullptr);
  Tensor found = forced_log_probabilities(model, hidden.data(), tensor_of(labels, {1, length}));
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

Tensor next_token_logits(const InferenceModel& model, std::span<const int32_t> ids) {
  const TransformerConfig& config = model.config();
  check_ids(ids, config.counted_vocab_size());
  const auto length = static_cast<int64_t>(ids.size());
  if (length == 0) throw ConfigError("a text without tokens has no logits; give a longer one");
  check_length(length, 0, config);

  const NoGrad no_grad;
  const std::vector<int64_t> inputs(ids.begin(), ids.end());
  const Variable hidden = run_stages(model, {.tokens = tensor_of(inputs, {1, length})}, nullptr);
  Tensor found = on_host(gathered_logits(model, hidden.data()));
  if (!found.defined()) {
    found = Tensor({length, config.padded_vocab_size}, DType::kFloat32, Stream{});
  }
  share(model, found);
  return found;
}

}  // namespace megatron

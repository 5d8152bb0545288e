#include "annex/retro/model/retrieval.h"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>
#include <optional>
#include <span>

#include "megatron/core/error.h"
#include "megatron/inference/model_step.h"

namespace megatron {
namespace {

constexpr int64_t kPageTokens = 16;

// Pages 0, 1, ... for so many tokens.
std::vector<int32_t> pages_of(int64_t tokens) {
  std::vector<int32_t> pages(static_cast<size_t>((tokens + kPageTokens - 1) / kPageTokens));
  std::iota(pages.begin(), pages.end(), 0);
  return pages;
}

// A text of a Retro with its KV cache and the keys and values of its neighbours.
class CachedText {
 public:
  CachedText(const InferenceModel& model, const TwoChunks& chunks, const PromptNeighbors& neighbors)
      : model_(model),
        chunks_(chunks),
        neighbors_(neighbors),
        pages_(pages_of(chunks.total)),
        neighbor_pages_(pages_of(std::ssize(neighbors.tokens))),
        cache_(cache_of(pages_)),
        neighbor_cache_(cache_of(neighbor_pages_)) {}

  // Reads further tokens, and draws the next one.
  int32_t next(std::span<const int32_t> tokens, const kernels::Draw& draw) {
    const auto count = std::ssize(tokens);
    std::vector<int64_t> positions(tokens.size());
    std::iota(positions.begin(), positions.end(), length_);
    const PagedRow row{0, count, length_, pages_};
    CachedBatch cached{cache_, cache_.batch_of({&row, 1})};
    cached.encoder_cache = &neighbor_cache_;
    ModelInput input = {
        .tokens = tensor_of(std::vector<int64_t>(tokens.begin(), tokens.end()), {1, count}),
        .position_ids = tensor_of(positions, {1, count})};
    const auto rk = std::ssize(neighbors_.tokens);
    if (length_ == 0) {
      input.neighbor_tokens =
          tensor_of(neighbors_.tokens, {rk / neighbors_.length, neighbors_.length});
      input.chunk_rows = Tensor({chunks_.chunk_length, 0}, DType::kInt64, Stream{});
      std::vector<int32_t> slots(static_cast<size_t>(rk));
      std::iota(slots.begin(), slots.end(), 0);
      input.first_chunk = chunks_.first;
      input.neighbor_slots = tensor_of(slots, {rk}).to(model_.stream());
    } else {
      const PagedRow token{0, 1, rk - 1, neighbor_pages_};
      cached.encoder_rows = neighbor_cache_.batch_of({&token, 1});
    }
    length_ += count;
    const Tensor hidden = run_stages(model_, input, &cached).data();
    const Tensor logits = gathered_logits(model_, hidden.slice(count - 1, 1));
    std::vector<double> token = {0};
    if (logits.defined()) token[0] = drawn_token(logits, tokens, draw);
    share(model_, token);
    return static_cast<int32_t>(token[0]);
  }

 private:
  // Draws the next token after `tokens`, the last ones of the text.
  int32_t drawn_token(const Tensor& logits, std::span<const int32_t> tokens,
                      const kernels::Draw& draw) {
    const Stream stream = model_.stream();
    std::vector<int32_t> slots(tokens.size());  // page i is the i-th one of the text
    std::iota(slots.begin(), slots.end(), static_cast<int32_t>(length_ - std::ssize(tokens)));
    const auto near = [&](std::span<const int32_t> values, const Shape& shape) {
      return tensor_of(std::vector<int32_t>(values.begin(), values.end()), shape).to(stream);
    };
    const Shape count = {std::ssize(tokens)};
    kernels::put_ids(cache_.ids().view(), near(tokens, count).view(), near(slots, count).view(),
                     stream);
    const Tensor pages = near(pages_, {1, std::ssize(pages_)});
    const Tensor length = near(std::vector<int32_t>{static_cast<int32_t>(length_)}, {1});
    return drawn_tokens(
               logits, {&draw, 1},
               {.ids = cache_.ids().view(), .pages = pages.view(), .lengths = length.view()})
        .tokens.front();
  }
  KvCache cache_of(const std::vector<int32_t>& pages) const {
    return {model_.config(),
            model_.chunk->cached_layers(),
            model_.parallel.tensor.size(),
            std::ssize(pages),
            kPageTokens,
            model_.stream(),
            model_.kv_cache};
  }

  const InferenceModel& model_;
  const TwoChunks chunks_;
  const PromptNeighbors& neighbors_;
  const std::vector<int32_t> pages_;
  const std::vector<int32_t> neighbor_pages_;
  KvCache cache_;
  KvCache neighbor_cache_;
  int64_t length_ = 0;  // tokens that were read
};

}  // namespace

TwoChunks two_chunks(int64_t prompt_length, const TransformerConfig& config) {
  if (prompt_length == 0) throw ConfigError("a prompt has no tokens; give it some text");
  const int64_t total = std::min(2 * prompt_length, max_positions(config));
  if (total <= prompt_length) {
    throw ConfigError(
        fmt::format("a prompt of {} tokens leaves no room for an answer in the model's {} "
                    "positions; shorten its contexts with --seq-length or --ft_neighbours",
                    prompt_length, max_positions(config)));
  }
  return {.total = total, .chunk_length = prompt_length, .first = total - prompt_length};
}

Generation generate_with_neighbors(const InferenceModel& model, const Request& request,
                                   const PromptNeighbors& neighbors) {
  const TransformerConfig& config = model.config();
  invariant(config.retro.reads_neighbors() && model.parallel.pipeline.size() == 1,
            "a Retro with an open gate is on one stage");
  const auto length = std::ssize(request.prompt);
  const TwoChunks chunks = two_chunks(length, config);
  check_ids(request.prompt, config.counted_vocab_size());
  const int64_t vocab = request.vocab_size > 0 ? request.vocab_size : config.counted_vocab_size();

  const NoGrad no_grad;
  CachedText text(model, chunks, neighbors);
  Generation made = {.tokens = request.prompt, .prompt_length = length};
  const int64_t most = std::min(request.max_new_tokens, chunks.total - length);
  std::span<const int32_t> unread = made.tokens;
  for (int64_t step = 0; step < most && !made.is_stopped; ++step) {
    const int32_t token = text.next(
        unread, draw_of(request.sampling, top_p_at(request.sampling, step),
                        sampling_uniform(request.seed, request.row, step), vocab, length));
    if (token == kernels::kNoToken) throw Error(kNotANumber);
    made.tokens.push_back(token);
    unread = std::span(made.tokens).last(1);
    made.is_stopped = std::ranges::find(request.stop_tokens, token) != request.stop_tokens.end();
  }
  return made;
}

}  // namespace megatron

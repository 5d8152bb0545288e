// Encoder passes of a T5 for the engine's requests.
#include <fmt/format.h>

#include <algorithm>
#include <functional>
#include <set>
#include <utility>

#include "megatron/core/error.h"
#include "megatron/inference/engine_parts.h"
#include "megatron/inference/t5_stages.h"

namespace megatron {
namespace {

template <class Group>
int64_t length_of(const Group& group) {
  return static_cast<int64_t>(group.request.text.size());
}

}  // namespace

void Engine::check_text(const Request& request) const {
  invariant(model_.t5 == nullptr || !request.pooling, "a T5 has no embeddings");
  if (model_.t5 == nullptr) {
    invariant(request.text.empty(), "a GPT has no encoder that reads a text");
    return;
  }
  if (request.text.empty()) throw ConfigError("the text has no tokens; give it some");
  const TransformerConfig& config = model_.config();
  check_ids(request.text, config.counted_vocab_size());
  const auto length = static_cast<int64_t>(request.text.size());
  check_length(length, 0, config);
  if (length <= options_.encoder_tokens) return;
  throw ConfigError(
      fmt::format("a text of {} tokens is longer than the {} tokens that the encoder's outputs may "
                  "have together; shorten it, or make the cache larger",
                  length, options_.encoder_tokens));
}

// The encoder text of a joining request; shared with a running request of the same text.
std::shared_ptr<Engine::Text> Engine::text_of(const Request& request) {
  for (const auto& group : running_) {
    if (group->request.text == request.text) return group->text;
  }
  return std::make_shared<Text>(*text_pool_);
}

// True if the encoder cache has room for a text of `length` tokens.
bool Engine::has_room_for_text(int64_t length) const {
  std::set<const Text*> kept;
  for (const auto& group : running_) {
    if (kept.insert(group->text.get()).second) {
      length += length_of(*group);
    }
  }
  return length <= options_.encoder_tokens;
}

// Encodes the new texts of a step, texts of similar length in one batch.
void Engine::read_texts(std::span<const Part> parts) {
  std::vector<const Group*> fresh;
  for (const Part& part : parts) {
    if (!std::exchange(part.group->text->is_read, true)) fresh.push_back(part.group);
  }
  std::ranges::stable_sort(fresh, std::greater(),
                           [](const Group* group) { return length_of(*group); });
  for (size_t begin = 0, end = 0; begin < fresh.size(); begin = end) {
    const int64_t longest = length_of(*fresh[begin]);
    while (end < fresh.size() && 4 * length_of(*fresh[end]) >= 3 * longest) ++end;
    read_together(std::span(fresh).subspan(begin, end - begin));
  }
}

// The first text is the longest; the others are padded.
void Engine::read_together(std::span<const Group* const> groups) {
  const auto b = static_cast<int64_t>(groups.size());
  const int64_t longest = length_of(*groups.front());
  std::vector<int64_t> tokens;
  Tensor padding({b, longest}, DType::kBool, Stream{});
  for (const Group* group : groups) {
    const std::vector<int32_t>& text = group->request.text;
    const auto row = padding.span<bool>().subspan(tokens.size(), static_cast<size_t>(longest));
    tokens.insert(tokens.end(), text.begin(), text.end());
    tokens.insert(tokens.end(), static_cast<size_t>(longest) - text.size(), 0);
    std::ranges::fill(row.first(text.size()), false);
    std::ranges::fill(row.subspan(text.size()), true);
  }
  ModelInput input = {.tokens = tensor_of(tokens, {b, longest})};
  if (length_of(*groups.back()) < longest) input.padding_mask = padding;
  std::vector<int32_t> slots(static_cast<size_t>(longest * b), -1);
  for (int64_t row = 0; row < b; ++row) {
    const Group& group = *groups[static_cast<size_t>(row)];
    std::vector<int32_t>& pages = group.text->pages;
    const int64_t page_tokens = text_pool_->page_tokens();
    for (int64_t i = 0; i < length_of(group); ++i) {
      if (i % page_tokens == 0) pages.push_back(text_pool_->allocate());
      slots[static_cast<size_t>(i * b + row)] =
          static_cast<int32_t>(pages.back() * page_tokens + i % page_tokens);
    }
  }
  const Variable output = run_encoder(model_, input);
  if (!output.defined()) return;  // on a stage of the encoder
  model_.t5->keep_encoder_output(output, *text_cache_,
                                 tensor_of(slots, {longest * b}).to(model_.stream()));
}

}  // namespace megatron

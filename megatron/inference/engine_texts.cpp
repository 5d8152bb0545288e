// The texts that the encoder of a T5 reads for the engine's requests.
#include <fmt/format.h>

#include <set>

#include "megatron/core/error.h"
#include "megatron/inference/engine_parts.h"
#include "megatron/inference/t5_stages.h"

namespace megatron {

void Engine::check_text(const Request& request) const {
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

// The text of a request that joins: that of one that runs, if it is the same.
std::shared_ptr<Engine::Text> Engine::text_of(const Request& request) const {
  for (const auto& group : running_) {
    if (group->request.text == request.text) return group->text;
  }
  return std::make_shared<Text>();
}

// Whether the texts that are kept leave room for one of `length` tokens.
bool Engine::has_room_for_text(int64_t length) const {
  std::set<const Text*> kept;
  for (const auto& group : running_) {
    if (kept.insert(group->text.get()).second) {
      length += static_cast<int64_t>(group->request.text.size());
    }
  }
  return length <= options_.encoder_tokens;
}

// The encoder reads the new texts of a step, each by itself: no text is padded, so that what it
// makes of one does not depend on the others.
void Engine::read_texts(std::span<const Part> parts) {
  for (const Part& part : parts) {
    Text& text = *part.group->text;
    if (text.is_read) continue;
    const std::vector<int32_t>& ids = part.group->request.text;
    const std::vector<int64_t> tokens(ids.begin(), ids.end());
    text.memory.output = run_encoder(
        model_, {.encoder_tokens = tensor_of(tokens, {1, static_cast<int64_t>(tokens.size())})});
    text.is_read = true;
  }
}

}  // namespace megatron

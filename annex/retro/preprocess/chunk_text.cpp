#include "annex/retro/preprocess/chunk_text.h"

#include <string_view>
#include <vector>

namespace megatron::retro {

std::string text_of_chunk(std::span<const int64_t> tokens, const Tokenizer& tokenizer) {
  constexpr std::string_view kEndOfText = "<|endoftext|>";
  const std::vector<int32_t> ids(tokens.begin(), tokens.end());
  std::string text = tokenizer.decode(ids);
  for (size_t at = text.find(kEndOfText); at != std::string::npos; at = text.find(kEndOfText, at)) {
    text.erase(at, kEndOfText.size());
  }
  return text;
}

}  // namespace megatron::retro

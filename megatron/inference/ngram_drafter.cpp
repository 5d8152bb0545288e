#include <algorithm>

#include "megatron/core/error.h"
#include "megatron/inference/draft.h"

namespace megatron {
namespace {

// The tokens after the last earlier occurrence of the longest end of `tokens`.
std::span<const int32_t> continuation(std::span<const int32_t> tokens, int64_t min_ngram,
                                      int64_t max_ngram) {
  const auto size = std::ssize(tokens);
  int64_t longest = min_ngram - 1;
  int64_t found = -1;
  for (int64_t end = size - 1; end > longest && longest < max_ngram; --end) {
    int64_t common = 0;
    const int64_t most = std::min(max_ngram, end);
    while (common < most && tokens[static_cast<size_t>(end - 1 - common)] ==
                                tokens[static_cast<size_t>(size - 1 - common)]) {
      ++common;
    }
    if (common <= longest) continue;
    longest = common;
    found = end;
  }
  return found < 0 ? std::span<const int32_t>() : tokens.subspan(static_cast<size_t>(found));
}

}  // namespace

NgramDrafter::NgramDrafter(int64_t num_drafts, int64_t min_ngram, int64_t max_ngram)
    : num_drafts_(num_drafts), min_ngram_(min_ngram), max_ngram_(max_ngram) {
  invariant(num_drafts > 0 && min_ngram >= 1 && min_ngram <= max_ngram,
            "n-gram drafts have a number, and n-grams of at least one token");
}

std::vector<std::vector<int32_t>> NgramDrafter::propose(std::span<const DraftText> texts,
                                                        const Tensor& /*hidden*/) {
  std::vector<std::vector<int32_t>> drafts;
  for (const DraftText& text : texts) {
    const std::span<const int32_t> next = text.max_drafts == 0
                                              ? std::span<const int32_t>()
                                              : continuation(text.tokens, min_ngram_, max_ngram_);
    std::vector<int32_t>& own = drafts.emplace_back();
    if (next.empty()) continue;
    const auto count = static_cast<size_t>(std::min(text.max_drafts, num_drafts_));
    for (size_t i = 0; i < count; ++i) own.push_back(next[i % next.size()]);
  }
  return drafts;
}

}  // namespace megatron

#include "annex/corpus/english.h"

#include <algorithm>
#include <array>
#include <string>

#include "annex/corpus/ngrams.h"
#include "megatron/tokenizers/unicode_text.h"

namespace megatron::corpus {
namespace {

constexpr double kMinLetters = 0.8;  // A to Z, of all letters
constexpr double kMinWords = 0.08;   // frequent ones, of all words
constexpr int64_t kFewWords = 20;

// Sorted. Words of other languages are missing: "in" and "was" are German, "is" and "of" Dutch,
// "for" and "her" Danish, "on" French, "as" Portuguese.
constexpr std::array<std::string_view, 57> kFrequentWords = {
    "about", "after", "and",   "are",  "back",   "because", "been", "before", "being",   "but",
    "can",   "could", "did",   "does", "down",   "each",    "even", "every",  "first",   "from",
    "have",  "he",    "his",   "how",  "into",   "it",      "its",  "just",   "more",    "most",
    "not",   "only",  "other", "our",  "people", "said",    "she",  "should", "some",    "than",
    "that",  "the",   "their", "them", "there",  "these",   "they", "this",   "through", "to",
    "were",  "what",  "which", "who",  "with",   "would",   "you"};
static_assert(std::ranges::is_sorted(kFrequentWords));

}  // namespace

bool is_english(std::u32string_view text) {
  int64_t letters = 0;
  int64_t basic_letters = 0;
  for (const char32_t c : text) {
    if (!is_letter(c)) continue;
    ++letters;
    if (c < 0x80) ++basic_letters;
  }
  if (static_cast<double>(basic_letters) < kMinLetters * static_cast<double>(letters)) {
    return false;
  }
  const Words words = words_of(text);
  const int64_t frequent = std::ranges::count_if(words.texts, [](const std::string& word) {
    return std::ranges::binary_search(kFrequentWords, std::string_view(word));
  });
  if (words.count() < kFewWords) return frequent > 0;
  return static_cast<double>(frequent) >= kMinWords * static_cast<double>(words.count());
}

}  // namespace megatron::corpus

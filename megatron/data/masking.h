#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "megatron/data/numpy_random.h"
#include "megatron/tokenizers/tokenizer.h"

namespace megatron {

// The vocabulary's tokens for masking.
struct MaskingVocabulary {
  int64_t size = 0;  // unpadded
  int64_t cls = 0;
  int64_t sep = 0;
  int64_t mask = 0;
  int64_t pad = 0;
  int64_t bos = -1;  // T5 only, like the next two
  int64_t eos = -1;
  std::vector<int64_t> sentinels;    // in the order of their use
  std::vector<bool> continues_word;  // [size] the piece begins with "##"
};

// For each id of a vocabulary, true if its piece continues a word, as "##ing" does.
std::vector<bool> continuation_pieces(const Tokenizer& tokenizer);

// The fraction of masked tokens, and the lengths of masked runs.
struct MaskingOptions {
  double probability = 0.15;
  int64_t max_ngram = 3;      // maximum words of a run
  bool is_geometric = false;  // lengths of runs: geometric(0.2), or proportional to 1 / length
};

// Adjacent tokens that are masked together.
struct MaskedSpan {
  std::vector<int64_t> positions;  // ascending
  std::vector<int64_t> originals;  // their tokens
};

// Masks whole words of `tokens` in place, like Megatron: takes words in random order, each as the
// first of a run, until `target_length` * probability tokens are masked. `replacement` returns the
// new token for a token and may draw from `random`. cls and sep are never masked. Returns the
// spans, ordered by first position; they do not overlap.
std::vector<MaskedSpan> mask_words(
    std::span<int64_t> tokens, int64_t target_length, const MaskingOptions& options,
    const MaskingVocabulary& vocabulary, NumpyRandom& random,
    const std::function<int64_t(int64_t token, NumpyRandom& random)>& replacement);

}  // namespace megatron

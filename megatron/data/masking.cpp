#include "megatron/data/masking.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <utility>

namespace megatron {
namespace {

// Words of a sample: runs of token positions.
std::vector<std::vector<int64_t>> words_of(std::span<const int64_t> tokens,
                                           const MaskingVocabulary& vocabulary) {
  std::vector<std::vector<int64_t>> words;
  for (size_t i = 0; i < tokens.size(); ++i) {
    const int64_t token = tokens[i];
    if (token == vocabulary.cls || token == vocabulary.sep) continue;
    const bool continues = vocabulary.continues_word[static_cast<size_t>(token)];
    if (!continues || words.empty()) words.emplace_back();
    words.back().push_back(static_cast<int64_t>(i));
  }
  return words;
}

// Probability of each length of a run, 1 to max: proportional to 1 / length.
std::vector<double> run_probabilities(int64_t max) {
  std::vector<double> p;
  for (int64_t k = 1; k <= max; ++k) p.push_back(1.0 / static_cast<double>(k));
  const double sum = numpy_sum(p);
  for (double& value : p) value /= sum;
  // Compat: Megatron-LM core_r0.5.0 normalizes the quotients again before it draws.
  const double again = numpy_sum(p);
  for (double& value : p) value /= again;
  return p;
}

std::vector<int64_t> positions_of(std::span<const std::vector<int64_t>> words) {
  std::vector<int64_t> positions;
  for (const auto& word : words) positions.insert(positions.end(), word.begin(), word.end());
  return positions;
}

}  // namespace

std::vector<bool> continuation_pieces(const Tokenizer& tokenizer) {
  std::vector<bool> continues;
  for (int64_t id = 0; id < tokenizer.vocab_size(); ++id) {
    continues.push_back(tokenizer.piece(static_cast<int32_t>(id)).starts_with("##"));
  }
  return continues;
}

std::vector<MaskedSpan> mask_words(
    std::span<int64_t> tokens, int64_t target_length, const MaskingOptions& options,
    const MaskingVocabulary& vocabulary, NumpyRandom& random,
    const std::function<int64_t(int64_t token, NumpyRandom& random)>& replacement) {
  const std::vector<std::vector<int64_t>> words = words_of(tokens, vocabulary);
  // Not rounded: 1.95 allows one token. nearbyint rounds halves to even, as Python does.
  const double wanted = std::min(
      options.probability * static_cast<double>(target_length),
      std::max(1.0, std::nearbyint(static_cast<double>(tokens.size()) * options.probability)));
  std::vector<int64_t> order(words.size());
  std::iota(order.begin(), order.end(), int64_t{0});
  random.shuffle(std::span<int64_t>(order));
  const std::vector<double> probabilities = run_probabilities(options.max_ngram);

  std::vector<MaskedSpan> spans;
  std::vector<bool> is_masked(tokens.size(), false);
  int64_t done = 0;
  const auto fits = [&](const std::vector<int64_t>& positions) {
    return static_cast<double>(done + static_cast<int64_t>(positions.size())) <= wanted;
  };
  for (const int64_t first : order) {
    if (static_cast<double>(done) >= wanted) break;
    int64_t run = options.is_geometric ? std::min(random.geometric(0.2), options.max_ngram)
                                       : random.choice(probabilities) + 1;
    run = std::min(run, static_cast<int64_t>(words.size()) - first);
    std::vector<int64_t> positions;
    for (; run > 0; --run) {
      positions = positions_of(
          std::span(words).subspan(static_cast<size_t>(first), static_cast<size_t>(run)));
      if (fits(positions)) break;
    }
    const bool is_taken = std::any_of(positions.begin(), positions.end(), [&](int64_t position) {
      return is_masked[static_cast<size_t>(position)];
    });
    if (run == 0 || is_taken) continue;

    MaskedSpan span;
    for (const int64_t position : positions) {
      const auto i = static_cast<size_t>(position);
      is_masked[i] = true;
      span.originals.push_back(tokens[i]);
      tokens[i] = replacement(tokens[i], random);
    }
    done += static_cast<int64_t>(positions.size());
    span.positions = std::move(positions);
    spans.push_back(std::move(span));
  }
  std::sort(spans.begin(), spans.end(), [](const MaskedSpan& a, const MaskedSpan& b) {
    return a.positions.front() < b.positions.front();
  });
  return spans;
}

}  // namespace megatron

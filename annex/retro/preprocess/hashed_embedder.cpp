#include <cmath>
#include <string_view>

#include "annex/retro/preprocess/embedder.h"
#include "annex/retro/preprocess/parallel_work.h"

namespace megatron::retro {
namespace {

// FNV-1a, 64 bits, with a last step that mixes the upper bits.
uint64_t hash_of(std::string_view text, uint64_t hash = 14695981039346656037u) {
  for (const char letter : text) {
    hash = (hash ^ static_cast<unsigned char>(letter)) * 1099511628211u;
  }
  return hash ^ (hash >> 29);
}

// The letter in lower case; 0 if it is in no word.
char letter_of(char c) {
  if ('A' <= c && c <= 'Z') return static_cast<char>(c - 'A' + 'a');
  const bool is_inside = ('a' <= c && c <= 'z') || ('0' <= c && c <= '9') || (c & 0x80) != 0;
  return is_inside ? c : '\0';
}

std::vector<std::string> words_of(std::string_view text) {
  std::vector<std::string> words(1);
  for (const char c : text) {
    const char letter = letter_of(c);
    if (letter != '\0') {
      words.back() += letter;
    } else if (!words.back().empty()) {
      words.emplace_back();
    }
  }
  if (words.back().empty()) words.pop_back();
  return words;
}

class HashedEmbedder final : public Embedder {
 public:
  explicit HashedEmbedder(int64_t dimension) : dimension_(dimension) {}

  int64_t dimension() const override { return dimension_; }

  std::vector<float> embed(std::span<const std::string> texts) const override {
    const auto width = static_cast<size_t>(dimension_);
    std::vector<float> vectors(texts.size() * width);
    for_each_number(std::ssize(texts), [&](int64_t i) {
      const auto row = static_cast<size_t>(i);
      embed(texts[row], std::span(vectors).subspan(row * width, width));
    });
    return vectors;
  }

 private:
  static void embed(std::string_view text, std::span<float> vector) {
    const std::vector<std::string> words = words_of(text);
    const auto count = [&](uint64_t hash) {
      vector[(hash >> 1) % vector.size()] += (hash & 1) != 0 ? 1.0F : -1.0F;
    };
    for (size_t k = 0; k < words.size(); ++k) {
      count(hash_of(words[k]));
      if (k > 0) count(hash_of(words[k], hash_of(words[k - 1] + " ")));
    }
    double sum = 0;
    for (const float value : vector) sum += static_cast<double>(value) * value;
    if (sum == 0) return;
    const double scale = 1 / std::sqrt(sum);
    for (float& value : vector) value = static_cast<float>(value * scale);
  }

  int64_t dimension_;
};

}  // namespace

std::unique_ptr<Embedder> make_hashed_embedder(int64_t dimension) {
  return std::make_unique<HashedEmbedder>(dimension);
}

}  // namespace megatron::retro

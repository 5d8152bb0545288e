#pragma once

#include <algorithm>
#include <cstdint>
#include <iterator>
#include <random>
#include <string>
#include <string_view>

namespace megatron {

// Damages texts, with a seed.
class Mutator {
 public:
  // `letters`: what single letters of the format become; empty: nothing.
  explicit Mutator(uint64_t seed, std::string_view letters = {})
      : random_(seed), letters_(letters) {}

  uint64_t below(uint64_t bound) { return random_() % bound; }
  std::string mutated(std::string text) {
    for (uint64_t i = below(4); i > 0 && !text.empty(); --i) edit(text);
    return text;
  }
  std::string noise(uint64_t size) {
    std::string text(size, ' ');
    for (char& letter : text) letter = static_cast<char>(random_());
    return text;
  }

 private:
  void edit(std::string& text) {
    const size_t at = below(text.size());
    const size_t size = std::min<size_t>(below(16), text.size() - at);
    switch (below(letters_.empty() ? 6 : 7)) {
      case 0:
        text[at] = static_cast<char>(text[at] ^ (1 << below(8)));
        return;
      case 1:
        text[at] = static_cast<char>(below(256));
        return;
      case 2:
        text.resize(at);
        return;
      case 3:
        text.erase(at, size);
        return;
      case 4:
        text.insert(at, text.substr(below(text.size()), size));
        return;
      case 5: {  // a number of four or eight bytes that lies
        constexpr uint64_t kNumbers[] = {
            0, 1, 0x7f, 0xff, 0x7fffffff, 0xffffffff, INT64_MAX, UINT64_MAX, uint64_t{1} << 40};
        const uint64_t number = kNumbers[below(std::size(kNumbers))];
        const size_t width = std::min<size_t>(below(2) == 0 ? 4 : 8, text.size() - at);
        text.replace(at, width, reinterpret_cast<const char*>(&number), width);
        return;
      }
      default:
        text[at] = letters_[below(letters_.size())];
        return;
    }
  }

  std::mt19937_64 random_;
  std::string letters_;
};

}  // namespace megatron

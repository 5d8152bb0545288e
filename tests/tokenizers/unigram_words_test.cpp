#include "megatron/tokenizers/unigram_words.h"

#include <gmock/gmock.h>

#include <cmath>
#include <cstring>
#include <random>

#include "tests/support/rounds.h"

namespace megatron {
namespace {

using Ids = std::vector<int32_t>;

Ids divided(const UnigramWords& words, std::string_view text, float before) {
  Ids ids;
  words.divide(text, before, ids);
  return ids;
}

TEST(UnigramWords, FindsTheBestDivision) {
  UnigramWords words(0);
  words.add_piece("a", 1, -1);
  words.add_piece("b", 2, -1);
  words.add_piece("ab", 3, -1.5);
  words.add_piece("abab", 4, -4);
  EXPECT_EQ(divided(words, "abab", 0), Ids({3, 3}));
  EXPECT_EQ(divided(words, "ba", 0), Ids({2, 1}));
  EXPECT_EQ(divided(words, "a\u00E9\u00E9b", 0), Ids({1, 0, 0, 2}));
  EXPECT_EQ(words.score(0), -14);
  EXPECT_EQ(divided(words, "", 0), Ids());
}

TEST(UnigramWords, RoundingBehindALongTextDecides) {
  UnigramWords words(0);
  words.add_piece("a", 1, -1);
  words.add_piece("b", 2, -1.001F);
  words.add_piece("ab", 3, -2);
  EXPECT_EQ(divided(words, "ab", 0), Ids({3}));
  // -2^24 - 1 becomes -2^24, so that "a" costs nothing.
  EXPECT_EQ(divided(words, "ab", -0x1p24F), Ids({1, 2}));
  words.add_piece("ab", 3, -2.0005F);
  Ids exact;
  const float limit = words.divide_exactly("ab", exact);
  EXPECT_EQ(exact, Ids({3}));
  EXPECT_GT(limit, 100);
  EXPECT_LT(limit, 0x1p14F);
}

TEST(UnigramWords, EqualDivisionsHoldBehindNoText) {
  UnigramWords words(0);
  words.add_piece("a", 1, -1);
  words.add_piece("aa", 2, -1.5);
  Ids exact;
  EXPECT_LE(words.divide_exactly("aaa", exact), 0);
}

// Scores of few values, so that divisions are often equal or nearly so.
TEST(UnigramWords, AnExactDivisionHoldsUpToItsLimit) {
  std::mt19937 random(5);
  int64_t num_held = 0;
  for (int64_t round = 0; round < rounds(300); ++round) {
    UnigramWords words(0);
    int32_t id = 1;
    for (const char* piece : {"a", "b", "aa", "ab", "ba", "bb", "aab", "abb", "bab", "abab"}) {
      const auto tenths = static_cast<float>(random() % 40);
      words.add_piece(piece, id++, -tenths / 10 - static_cast<float>(random() % 3) * 1e-4F);
    }
    for (int k = 0; k < 50; ++k) {
      std::string word;
      for (size_t length = 1 + random() % 12; length > 0; --length)
        word += "abc"[random() % 16 % 3];
      Ids exact;
      const float limit = words.divide_exactly(word, exact);
      const float before =
          -std::ldexp(static_cast<float>(random() % 1000), static_cast<int>(random() % 20));
      if (!(std::abs(before) < limit)) continue;
      ++num_held;
      ASSERT_EQ(divided(words, word, before), exact) << word << " behind " << before;
    }
  }
  EXPECT_GT(num_held, rounds(3000));
}

// The compiled form of one rule; see hf/charsmap.h.
std::string rule(const std::string& key, const std::string& replacement) {
  std::vector<uint32_t> units(256 * (key.size() + 2));
  uint32_t node = 256;
  units[0] = node << 10;
  for (size_t i = 0; i < key.size(); ++i) {
    const auto byte = static_cast<uint8_t>(key[i]);
    const uint32_t at = node ^ byte;
    node = static_cast<uint32_t>(256 * (i + 2));
    const bool is_last = i + 1 == key.size();
    units[at] = ((at ^ node) << 10) | (is_last ? 0x100u : 0u) | byte;
  }
  units[node] = 0x80000000u;
  const auto num_bytes = static_cast<uint32_t>(units.size() * 4);
  std::string bytes(4 + num_bytes, '\0');
  std::memcpy(bytes.data(), &num_bytes, 4);
  std::memcpy(bytes.data() + 4, units.data(), num_bytes);
  return bytes + replacement + '\0';
}

TEST(UnigramWords, RulesKeepToWordsUnlessABlankIsPartOfThem) {
  EXPECT_TRUE(rules_keep_to_words(""));
  EXPECT_TRUE(rules_keep_to_words(rule("ab", "c d")));
  EXPECT_TRUE(rules_keep_to_words(rule(" ", "\t")));
  EXPECT_FALSE(rules_keep_to_words(rule("a ", "b")));
  EXPECT_FALSE(rules_keep_to_words(rule("a b", "b")));
  EXPECT_FALSE(rules_keep_to_words(rule(" b", "b")));
  EXPECT_FALSE(rules_keep_to_words(rule("a", "b  c")));
  EXPECT_FALSE(rules_keep_to_words(rule("a", "\u2581")));
  EXPECT_FALSE(rules_keep_to_words("abc"));
  EXPECT_FALSE(rules_keep_to_words(rule("a", "b").substr(0, 100)));
}

}  // namespace
}  // namespace megatron

#include "megatron/tokenizers/llama3_split.h"

#include <gmock/gmock.h>

#include <memory>
#include <random>

#include "megatron/tokenizers/gpt4o_split.h"
#include "megatron/tokenizers/regex.h"
#include "tests/support/rounds.h"
#include "tests/tokenizers/random_texts.h"

namespace megatron {
namespace {

using testing::ElementsAre;

// A pattern and its scanner.
struct Llama3SplitCase {
  std::string_view pattern;
  WordRules rules;
};

const std::vector<Llama3SplitCase>& cases() {
  static const std::vector<Llama3SplitCase> all = {
      {kLlama3Pattern, {}},
      {kQwen2Pattern, {.max_digits = 1}},
      {kTikV1Pattern, {.max_digits = 1, .has_contractions = false}},
      {kGpt4oPattern, {.cuts_before_upper = true}},
      {kTikV2Pattern, {.max_digits = 1, .has_contractions = false, .cuts_before_upper = true}}};
  return all;
}

std::vector<std::string> words_of(std::string_view text, const WordRules& rules) {
  static const CharClasses classes;
  static const CasedClasses cased_classes;
  // A buffer of its own, so that a sanitizer sees each byte that is read behind the text.
  const auto buffer = std::make_unique<char[]>(text.size());
  std::copy(text.begin(), text.end(), buffer.get());
  text = {buffer.get(), text.size()};
  std::vector<std::string> words;
  const auto add = [&](std::string_view word) { words.emplace_back(word); };
  rules.cuts_before_upper ? gpt4o_split(text, rules, cased_classes, add)
                          : llama3_split(text, rules, classes, add);
  return words;
}

std::vector<std::string> matches_of(const Regex& regex, std::string_view text) {
  std::vector<Regex::Match> places;
  regex.find_all(text, places);
  std::vector<std::string> words;
  for (const Regex::Match& place : places) {
    words.emplace_back(text.substr(place.begin, place.end - place.begin));
  }
  return words;
}

// MG_FUZZ_STRINGS sets the number of texts.
int64_t llama3_split_num_texts() { return random_texts(4000); }

// Each text is what next_text() gives.
template <class NextText>
void expect_patterns(int64_t count, const NextText& next_text) {
  for (const Llama3SplitCase& one : cases()) {
    const Regex regex(one.pattern);
    for (int64_t i = 0; i < count; ++i) {
      const std::string text = next_text();
      ASSERT_EQ(words_of(text, one.rules), matches_of(regex, text)) << one.pattern << "\n" << text;
    }
  }
}

TEST(Llama3Split, KnownWords) {
  EXPECT_THAT(words_of("I'M 12345 we'llx\t\tgo", {}),
              ElementsAre("I", "'M", " ", "123", "45", " we", "'ll", "x", "\t", "\tgo"));
  EXPECT_THAT(words_of("a  b \n\n  c!?\r\n \n", {.max_digits = 1}),
              ElementsAre("a", " ", " b", " \n\n", " ", " c", "!?\r\n", " \n"));
  EXPECT_THAT(words_of("", {}), ElementsAre());
}

TEST(Gpt4oSplit, KnownWords) {
  const WordRules rules = {.cuts_before_upper = true};
  EXPECT_THAT(words_of("don't HTTPServer'S 1234 \u0301x\u4E2DA", rules),
              ElementsAre("don't", " HTTPServer'S", " ", "123", "4", " \u0301x\u4E2D", "A"));
  EXPECT_THAT(words_of("it's's a/b!/\n/\n c", rules),
              ElementsAre("it's", "'s", " a", "/b", "!/\n/\n", " c"));
}

TEST(Llama3Split, IsThePattern) {
  RandomTexts texts(3);
  expect_patterns(llama3_split_num_texts(), [&] {
    std::string text = texts.next();
    for (const char* part : {"'S", "'ll", "'\u017F", "'Re", " 's"}) {
      if (text.size() % 7 == static_cast<size_t>(part[1] % 7)) text += part + texts.next();
    }
    return text;
  });
}

// Long runs of ASCII are cut 64 bytes at a time: every rule must hold across every border.
TEST(Llama3Split, IsThePatternOnLongTexts) {
  const std::u32string ascii =
      U"aZbstmdrevlSTMDREVL''''//      \t\n\n\v\r0199-.,!@[`{:\u001C\u007F" +
      std::u32string(1, U'\0');
  const std::u32string others =
      U"\u00A0\u0085\u3000\u00E9\u00C9\u4E2D\u0660\u0301\U0001F600\u017F\u01C5\u02B0"
      U"\u2009\u200F\u2010\u2013\u2019\u2019\u201C\u2027\u2028\u2110\u3010";
  std::mt19937 random(11);
  expect_patterns(llama3_split_num_texts(), [&] {
    std::string text;
    const size_t length = 50 + random() % 200;
    const size_t rarity = 1 + random() % 300;  // of characters beyond ASCII
    const size_t most = 1 + random() % 12;     // length of runs of one character
    while (text.size() < length) {
      const bool plain = random() % rarity != 0;
      const std::u32string& from = plain ? ascii : others;
      const char32_t c = from[random() % from.size()];
      for (size_t count = random() % 4 == 0 ? 1 + random() % most : 1; count > 0; --count) {
        append_utf8(text, c);
      }
    }
    return text;
  });
}

TEST(Llama3Split, WordsOfEveryLengthAtEveryPlaceOfABlock) {
  const std::vector<std::string> words = {
      "a",        "'s",       "'ll",      "'l",        " ",       "  ",     "\n",      "7",
      "1234",     "!",        " 's",      "\u00E9",    "!a",      "aB",     "\n \n",   "!\n",
      "'\u017F",  "/\n/",     " \n x",    "'s'",       "\t!",     "\u2019", "\u2019s", " \u2019s",
      "!\u2019s", "\u2019!s", "\u2019\n", "\t\u201Cs", "a\u2019S"};
  size_t at = 0;
  const std::string letters = "x .\n";
  expect_patterns(static_cast<int64_t>(words.size() * 140 * letters.size()), [&] {
    const size_t place = at++;
    const std::string& word = words[place % words.size()];
    const size_t before = place / words.size() % 140;
    const char letter = letters[place / words.size() / 140 % letters.size()];
    return std::string(before, letter) + word + std::string(70, 'q');
  });
}

}  // namespace
}  // namespace megatron

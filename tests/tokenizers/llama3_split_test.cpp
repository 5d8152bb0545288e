#include "megatron/tokenizers/llama3_split.h"

#include <gmock/gmock.h>

#include "megatron/tokenizers/regex.h"
#include "tests/tokenizers/random_texts.h"

namespace megatron {
namespace {

std::vector<std::string> words_of(std::string_view text, int max_digits) {
  static const CharClasses classes;
  std::vector<std::string> words;
  llama3_split(text, classes, max_digits, [&](std::string_view word) { words.emplace_back(word); });
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

TEST(Llama3Split, KnownWords) {
  EXPECT_THAT(words_of("I'M 12345 we'llx\t\tgo", 3),
              testing::ElementsAre("I", "'M", " ", "123", "45", " we", "'ll", "x", "\t", "\tgo"));
  EXPECT_THAT(words_of("a  b \n\n  c!?\r\n \n", 1),
              testing::ElementsAre("a", " ", " b", " \n\n", " ", " c", "!?\r\n", " \n"));
  EXPECT_THAT(words_of("", 3), testing::ElementsAre());
}

TEST(Llama3Split, IsThePattern) {
  const Regex three(kLlama3Pattern);
  const Regex one(kQwen2Pattern);
  RandomTexts texts(3);
  for (int i = 0; i < 5000; ++i) {
    std::string text = texts.next();
    for (const char* part : {"'S", "'ll", "'\u017F", "'Re", " 's"}) {
      if (text.size() % 7 == static_cast<size_t>(part[1] % 7)) text += part + texts.next();
    }
    ASSERT_EQ(words_of(text, 3), matches_of(three, text)) << text;
    ASSERT_EQ(words_of(text, 1), matches_of(one, text)) << text;
  }
}

}  // namespace
}  // namespace megatron

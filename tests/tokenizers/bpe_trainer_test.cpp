#include "megatron/tokenizers/bpe_trainer.h"

#include <gmock/gmock.h>

#include <map>
#include <random>
#include <set>

#include "megatron/core/error.h"
#include "megatron/core/file.h"
#include "megatron/tokenizers/gpt2_bpe_tokenizer.h"
#include "tests/support/message_of.h"
#include "tests/support/source_path.h"
#include "tests/support/temporary_directory.h"

namespace megatron {
namespace {

using testing::HasSubstr;
using testing::Pair;

TEST(BpeTrainer, MergesTheMostFrequentPairFirst) {
  BpeTrainer trainer;
  trainer.add_text("abab abab xy");
  const BpeVocabulary vocabulary = trainer.train(1000, 2);
  ASSERT_EQ(vocabulary.merges.size(), 2u);
  EXPECT_THAT(vocabulary.merges[0], Pair("a", "b"));
  EXPECT_THAT(vocabulary.merges[1], Pair("ab", "ab"));
  EXPECT_EQ(vocabulary.tokens.size(), 258u);
  EXPECT_EQ(vocabulary.tokens[0], "!");
}

TEST(BpeTrainer, StopsAtTheVocabularySize) {
  BpeTrainer trainer;
  trainer.add_text("abcdefgh abcdefgh");
  EXPECT_EQ(trainer.train(257, 2).tokens.size(), 256u);
  EXPECT_EQ(trainer.train(260, 2).tokens.size(), 259u);
}

TEST(BpeTrainer, AnOverlappingPairIsCountedAndMergedLeftToRight) {
  BpeTrainer trainer;
  trainer.add_text("aaaaa");
  const BpeVocabulary vocabulary = trainer.train(1000, 1);
  EXPECT_THAT(vocabulary.merges[0], Pair("a", "a"));   // aa aa a
  EXPECT_THAT(vocabulary.merges[1], Pair("aa", "a"));  // ties: the lowest ids, a=64 before aa=256
}

// The same merges as counting everything anew for each one.
TEST(BpeTrainer, EqualsThePlainAlgorithm) {
  std::mt19937 random(5);
  for (int round = 0; round < 20; ++round) {
    std::map<std::vector<int32_t>, int64_t> words;  // letters are ids here
    BpeTrainer trainer;
    for (int i = 0; i < 60; ++i) {
      std::string word;
      const size_t length = 1 + random() % 9;
      for (size_t k = 0; k < length; ++k) word += static_cast<char>('a' + random() % 3);
      trainer.add_text(word);
      std::vector<int32_t> symbols;
      for (const char c : word) symbols.push_back(64 + (c - 'a'));  // "a" is id 64
      ++words[symbols];
    }
    const BpeVocabulary got = trainer.train(300, 2);

    std::vector<std::string> tokens(got.tokens.begin(), got.tokens.begin() + 256);
    ASSERT_EQ(tokens[64], "a");
    for (const auto& merge : got.merges) {
      std::map<std::pair<int32_t, int32_t>, int64_t> counts;
      for (const auto& [word, count] : words) {
        for (size_t k = 0; k + 1 < word.size(); ++k) counts[{word[k], word[k + 1]}] += count;
      }
      auto best = counts.begin();
      for (auto it = counts.begin(); it != counts.end(); ++it) {
        if (it->second > best->second) best = it;
      }
      const auto [left, right] = best->first;
      ASSERT_EQ(merge.first, tokens[static_cast<size_t>(left)]);
      ASSERT_EQ(merge.second, tokens[static_cast<size_t>(right)]);
      const std::string joined = merge.first + merge.second;
      auto token = std::find(tokens.begin(), tokens.end(), joined);
      const auto id = static_cast<int32_t>(token - tokens.begin());
      if (token == tokens.end()) tokens.push_back(joined);
      std::map<std::vector<int32_t>, int64_t> merged;
      for (const auto& [word, count] : words) {
        std::vector<int32_t> next;
        for (size_t k = 0; k < word.size();) {
          const bool here = k + 1 < word.size() && word[k] == left && word[k + 1] == right;
          next.push_back(here ? id : word[k]);
          k += here ? 2 : 1;
        }
        merged[next] += count;
      }
      words = merged;
    }
    EXPECT_EQ(got.tokens, tokens);
  }
}

TEST(BpeTrainer, TheOrderOfTextsDoesNotMatter) {
  BpeTrainer one;
  one.add_text("low lower lowest");
  one.add_text("new newer newest");
  BpeTrainer two;
  two.add_text("new newer newest");
  two.add_text("low lower lowest");
  EXPECT_EQ(one.train(280, 1).merges, two.train(280, 1).merges);
}

TEST(BpeTrainer, ItsFilesLoadAndRoundTrip) {
  const TemporaryDirectory files;
  const std::string text = read_text(source_path("tests/golden/megatron/data/corpus.jsonl"));
  BpeTrainer trainer;
  trainer.add_text(text);
  const BpeVocabulary vocabulary = trainer.train(600, 2);
  write_gpt2_files(vocabulary, (files.path() / "made"));
  const Gpt2BpeTokenizer tokenizer((files.path() / "made/vocab.json").string(),
                                   (files.path() / "made/merges.txt").string());
  EXPECT_EQ(tokenizer.vocab_size(), 600);
  EXPECT_EQ(tokenizer.eod(), 599);
  const std::vector<int32_t> ids = tokenizer.encode(text);
  EXPECT_LT(ids.size(), text.size() / 2);
  EXPECT_EQ(tokenizer.decode(ids), text);
  EXPECT_EQ(Gpt2BpeTokenizer::from_directory((files.path() / "made"))->encode(text), ids);
}

TEST(BpeTrainer, ErrorsTellWhatToGive) {
  BpeTrainer trainer;
  EXPECT_THAT(message_of([&] { trainer.train(300, 2); }), HasSubstr("holds no text to learn from"));
  trainer.add_text("text");
  EXPECT_THAT(message_of([&] { trainer.train(256, 2); }),
              HasSubstr("--vocab-size 256 is too small"));
  EXPECT_THAT(message_of([&] { trainer.train(300, 0); }),
              HasSubstr("--min-frequency 0 must be at least 1"));
  EXPECT_THAT(message_of([&] { write_gpt2_files(trainer.train(257, 2), "/dev/null/x"); }),
              HasSubstr("/dev/null/x: cannot create the directory"));
}

}  // namespace
}  // namespace megatron

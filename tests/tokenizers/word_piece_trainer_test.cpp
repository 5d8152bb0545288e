#include "megatron/tokenizers/word_piece_trainer.h"

#include <gmock/gmock.h>

#include <algorithm>

#include "megatron/core/error.h"
#include "megatron/tokenizers/bert_tokenizer.h"
#include "tests/support/message_of.h"
#include "tests/support/temporary_directory.h"

namespace megatron {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

std::vector<std::string> learned(const std::string& text, int64_t vocab_size,
                                 int64_t min_frequency = 1, bool lower_case = true) {
  WordPieceTrainer trainer(lower_case);
  trainer.add_text(text);
  return trainer.train(vocab_size, min_frequency);
}

TEST(WordPieceTrainer, MergesTheMostFrequentPairs) {
  EXPECT_THAT(learned("ab ab abc", 13),
              ElementsAre("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "a", "b", "c", "##a", "##b",
                          "##c", "ab", "abc"));
  // Pairs that occur once are not merged.
  EXPECT_EQ(learned("ab ab abc", 13, 2).size(), 12u);
}

TEST(WordPieceTrainer, WordsAreThoseOfBert) {
  const std::vector<std::string> lower = learned("H\u00E9, \u4E2D\u56FD", 100);
  EXPECT_THAT(lower, testing::Contains("he"));
  EXPECT_THAT(lower, testing::Contains(","));
  EXPECT_THAT(lower, testing::Not(testing::Contains("\u4E2D\u56FD")));
  EXPECT_THAT(learned("H\u00E9", 100, 1, false), testing::Contains("H\u00E9"));
}

TEST(WordPieceTrainer, TheOrderOfTextsDoesNotMatter) {
  WordPieceTrainer one(true);
  WordPieceTrainer two(true);
  one.add_text("the cat sat on the mat ");
  one.add_text("the dog");
  two.add_text("the dog");
  two.add_text("the cat sat on the mat ");
  EXPECT_EQ(one.train(40, 1), two.train(40, 1));
}

TEST(WordPieceTrainer, TheTokenizerReadsTheFile) {
  const TemporaryDirectory folder;
  write_bert_vocabulary(learned("lower lowest low", 40), folder.path() / "new");
  const BertTokenizer tokenizer((folder.path() / "new" / "vocab.txt").string(), {});
  EXPECT_EQ(tokenizer.decode(tokenizer.encode("Lowest low")), "lowest low");
}

TEST(WordPieceTrainer, ErrorsNameTheRule) {
  EXPECT_THAT(message_of([] { learned("ab", 8); }),
              HasSubstr("--vocab-size 8 is too small; 9 ids are taken by the special tokens"));
  EXPECT_THAT(message_of([] { learned("ab", 20, 0); }), HasSubstr("--min-frequency 0"));
  EXPECT_THAT(message_of([] { learned("", 20); }), HasSubstr("no text to learn from"));
}

}  // namespace
}  // namespace megatron

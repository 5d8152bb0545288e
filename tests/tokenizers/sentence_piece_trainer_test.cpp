#include "megatron/tokenizers/sentence_piece_trainer.h"

#include <gmock/gmock.h>

#include <string>

#include "megatron/core/error.h"
#include "megatron/tokenizers/sentence_piece_tokenizer.h"
#include "tests/support/message_of.h"
#include "tests/support/temporary_directory.h"

namespace megatron {
namespace {

using testing::HasSubstr;

TEST(SentencePieceModelTrainer, LearnsBothKinds) {
  const TemporaryDirectory folder;
  SentencePieceModelTrainer trainer;
  for (int i = 0; i < 30; ++i) trainer.add_text("the cat sat on the mat\nand the dog did not\n");
  trainer.add_text(std::string(10000, 'x'));  // is cut
  for (const bool unigram : {false, true}) {
    const std::string model = trainer.train({.unigram = unigram, .vocab_size = 285});
    EXPECT_EQ(model, trainer.train({.unigram = unigram, .vocab_size = 285}));
    const SentencePieceTokenizer tokenizer(folder.write("t.model", model), {.vocab_extra_ids = 2});
    EXPECT_EQ(tokenizer.required_id(SpecialToken::kBos), 1);
    EXPECT_EQ(tokenizer.sentinel_ids().size(), 2u);
    EXPECT_EQ(tokenizer.decode(tokenizer.encode("the cat \u4E2D\n.")), "the cat \u4E2D .");
    EXPECT_EQ(tokenizer.encode("the<extra_id_1>").back(), tokenizer.sentinel_ids()[1]);
  }
}

TEST(SentencePieceModelTrainer, ErrorsNameTheRule) {
  SentencePieceModelTrainer trainer;
  EXPECT_THAT(message_of([&] { trainer.train({.vocab_size = 300}); }),
              HasSubstr("no text to learn from"));
  trainer.add_text("some text");
  EXPECT_THAT(message_of([&] { trainer.train({.vocab_size = 100000}); }),
              HasSubstr("SentencePiece cannot learn --vocab-size 100000 pieces from 1 lines"));
}

}  // namespace
}  // namespace megatron

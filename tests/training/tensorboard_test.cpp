#include "megatron/training/tensorboard.h"

#include <gtest/gtest.h>

#include <vector>

#include "megatron/core/error.h"
#include "megatron/core/file.h"
#include "megatron/tokenizers/sentence_piece_tokenizer.h"
#include "megatron/tokenizers/sentence_piece_trainer.h"
#include "tests/training/tensorboard_events.h"

namespace megatron {
namespace {

TEST(TensorBoardWriterTest, WritesScalarsAndTexts) {
  const std::filesystem::path directory =
      std::filesystem::path(testing::TempDir()) / "tensorboard_test" / "new";
  std::filesystem::remove_all(directory);
  TensorBoardWriter writer(directory);
  writer.add_scalar("lm loss", 2.5, 7);
  writer.add_text("lr", "0.001", 0);

  const std::vector<tensorboard::Event> events = events_of(read_text(writer.path()));
  ASSERT_EQ(events.size(), 3u);
  EXPECT_EQ(events[0].file_version(), "brain.Event:2");
  EXPECT_EQ(events[1].step(), 7);
  EXPECT_EQ(events[1].summary().value(0).tag(), "lm loss");
  EXPECT_EQ(events[1].summary().value(0).simple_value(), 2.5f);
  EXPECT_EQ(events[2].summary().value(0).tag(), "lr/text_summary");
  EXPECT_EQ(events[2].summary().value(0).tensor().string_val(0), "0.001");
  EXPECT_EQ(events[2].summary().value(0).metadata().plugin_data().plugin_name(), "text");
}

// Both have a protobuf, of different versions.
TEST(TensorBoardWriterTest, SharesAProgramWithSentencePiece) {
  const std::filesystem::path directory =
      std::filesystem::path(testing::TempDir()) / "tensorboard_test" / "shared";
  std::filesystem::remove_all(directory);
  std::filesystem::create_directories(directory);
  TensorBoardWriter writer(directory);
  writer.add_scalar("lm loss", 2.5, 7);
  SentencePieceModelTrainer trainer;
  trainer.add_text("a cat and a dog\nand a cat");
  const std::filesystem::path model = directory / "tokenizer.model";
  write_text_atomically(model, trainer.train({.vocab_size = 268}));
  const SentencePieceTokenizer tokenizer(model.string(), {});
  EXPECT_EQ(tokenizer.decode(tokenizer.encode("a dog")), "a dog");
  writer.add_text("lr", "0.001", 0);
  EXPECT_EQ(events_of(read_text(writer.path())).size(), 3u);
}

TEST(TensorBoardWriterTest, NamesADirectoryItCannotUse) {
  EXPECT_THROW(TensorBoardWriter("/dev/null/runs"), IoError);
}

}  // namespace
}  // namespace megatron

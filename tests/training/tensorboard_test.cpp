#include "megatron/training/tensorboard.h"

#include <gtest/gtest.h>

#include <cstring>
#include <vector>

#include "megatron/core/error.h"
#include "megatron/core/file.h"
#include "megatron/formats/crc32c.h"
#include "megatron/tokenizers/sentence_piece_tokenizer.h"
#include "megatron/tokenizers/sentence_piece_trainer.h"
#include "megatron/training/event.pb.h"

namespace megatron {
namespace {

uint32_t masked_crc(std::string_view bytes) {
  const uint32_t crc = crc32c(std::as_bytes(std::span(bytes.data(), bytes.size())));
  return ((crc >> 15) | (crc << 17)) + 0xa282ead8u;
}

// The events of a file of TFRecords, with both checksums of each verified.
std::vector<tensorboard::Event> events_of(const std::string& file) {
  std::vector<tensorboard::Event> events;
  std::string_view rest = file;
  while (!rest.empty()) {
    uint64_t length = 0;
    uint32_t length_crc = 0;
    uint32_t data_crc = 0;
    std::memcpy(&length, rest.data(), 8);
    std::memcpy(&length_crc, rest.data() + 8, 4);
    EXPECT_EQ(length_crc, masked_crc(rest.substr(0, 8)));
    const std::string_view data = rest.substr(12, length);
    std::memcpy(&data_crc, rest.data() + 12 + length, 4);
    EXPECT_EQ(data_crc, masked_crc(data));
    EXPECT_TRUE(events.emplace_back().ParseFromString(std::string(data)));
    rest.remove_prefix(16 + length);
  }
  return events;
}

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

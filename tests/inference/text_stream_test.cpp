#include "megatron/inference/text_stream.h"

#include <gtest/gtest.h>

#include <filesystem>

#include "tests/support/source_path.h"

namespace megatron {
namespace {

std::unique_ptr<Tokenizer> bytes_tokenizer() {
  const std::filesystem::path data = source_path("tests/golden/megatron/data");
  return make_tokenizer({.tokenizer_type = "GPT2BPETokenizer",
                         .vocab_file = (data / "vocab.json").string(),
                         .merge_file = (data / "merges.txt").string()});
}

struct Streamed {
  std::string text;
  std::vector<std::string> pieces;
  bool is_stopped = false;
};

Streamed streamed(const std::string& text, const std::vector<std::string>& stops = {}) {
  const auto tokenizer = bytes_tokenizer();
  TextStream stream(*tokenizer, tokenizer->encode("Once upon"), stops);
  Streamed result;
  for (const int32_t id : tokenizer->encode(text)) {
    result.pieces.push_back(stream.push(id));
    result.text += result.pieces.back();
    if (stream.is_stopped()) break;
  }
  result.text += stream.finish();
  result.is_stopped = stream.is_stopped();
  return result;
}

TEST(TextStreamTest, GivesTheWholeText) {
  for (const std::string text :
       {" a time there was a river", " \xE2\x82\xAC 5, \xF0\x9F\x90\xB8!", "\n\n  x"}) {
    EXPECT_EQ(streamed(text).text, text);
  }
}

TEST(TextStreamTest, NoPieceHasAPartOfACharacter) {
  const Streamed result = streamed(" \xF0\x9F\x90\xB8\xE2\x82\xAC");
  for (const std::string& piece : result.pieces) {
    EXPECT_EQ(piece.find("\xEF\xBF\xBD"), std::string::npos) << piece;
  }
  EXPECT_EQ(result.text, " \xF0\x9F\x90\xB8\xE2\x82\xAC");
}

// A frog without its last byte never becomes a character.
TEST(TextStreamTest, BrokenBytesComeAtTheEnd) {
  const auto tokenizer = bytes_tokenizer();
  auto ids = tokenizer->encode("\xF0\x9F\x90\xB8");
  ids.pop_back();
  TextStream stream(*tokenizer, {});
  std::string text;
  for (const int32_t id : ids) text += stream.push(id);
  EXPECT_EQ(text, "");
  EXPECT_EQ(stream.finish(), tokenizer->decode(ids));
}

// A character of several tokens, then one whose bytes are broken off.
TEST(TextStreamTest, TellsWhereEachTokenBegins) {
  const auto tokenizer = bytes_tokenizer();
  const auto ids = tokenizer->encode(
      "b\xF0\x9F\x90\xB8 d\xF0\x9F"
      "d!");
  TextStream stream(*tokenizer, tokenizer->encode("Once upon"));
  std::string text, bytes;
  std::vector<int64_t> begins;
  for (const int32_t id : ids) {
    text += stream.push(id);
    begins.push_back(stream.last_begin());
    bytes += stream.last_bytes();
  }
  text += stream.finish();
  EXPECT_EQ(bytes,
            "b\xF0\x9F\x90\xB8 d\xF0\x9F"
            "d!");
  EXPECT_EQ(text,
            "b\xF0\x9F\x90\xB8 d\xEF\xBF\xBD"
            "d!");
  ASSERT_EQ(ids.size(), 10u);
  EXPECT_EQ(begins, (std::vector<int64_t>{0, 1, 1, 1, 1, 2, 4, 4, 5, 6}));
  EXPECT_EQ(stream.num_given(), 7);
  EXPECT_TRUE(stream.has_given_all());
}

// Bytes that never become a character are given out after a while; others may follow them.
TEST(TextStreamTest, PlacesTokensBehindBrokenBytes) {
  const auto tokenizer = bytes_tokenizer();
  const auto id_of = [&](const std::string& bytes) { return tokenizer->encode(bytes).front(); };
  TextStream stream(*tokenizer, {});
  std::string text;
  std::vector<int64_t> begins;
  for (const char* byte : {"\xF0", "\xF0", "\xF0", "\xF0", "\x9F", "d"}) {
    text += stream.push(id_of(byte));
    begins.push_back(stream.last_begin());
  }
  EXPECT_EQ(text, "\uFFFD\uFFFD\uFFFD\uFFFDd");
  EXPECT_EQ(begins, (std::vector<int64_t>{0, 1, 2, 3, 3, 4}));
}

TEST(TextStreamTest, CountsWhatIsGiven) {
  const auto tokenizer = bytes_tokenizer();
  TextStream stream(*tokenizer, {}, {"o!"});
  EXPECT_EQ(stream.push(tokenizer->encode("o").front()), "");
  EXPECT_EQ(stream.num_given(), 0);
  EXPECT_FALSE(stream.has_given_all());
  EXPECT_EQ(stream.push(tokenizer->encode("o").front()), "o");
  EXPECT_EQ(stream.num_given(), 1);
  EXPECT_EQ(stream.push(tokenizer->encode("!").front()), "");
  EXPECT_TRUE(stream.is_stopped());
  EXPECT_EQ(stream.num_given(), 1);
}

TEST(TextStreamTest, StopsBeforeAStopString) {
  const Streamed result = streamed(" one two three four", {"zzz", "two th"});
  EXPECT_TRUE(result.is_stopped);
  EXPECT_EQ(result.text, " one ");
  EXPECT_EQ(streamed("abc", {"a", "abc"}).text, "");
}

// Text that may become a stop string is held back, and returned later if it does not.
TEST(TextStreamTest, HoldsTheBeginningOfAStopString) {
  const Streamed result = streamed(" one two", {" two thirds", "o!"});
  EXPECT_FALSE(result.is_stopped);
  EXPECT_EQ(result.text, " one two");
  std::string before_end;
  for (const std::string& piece : result.pieces) before_end += piece;
  EXPECT_EQ(before_end, " one");
}

}  // namespace
}  // namespace megatron

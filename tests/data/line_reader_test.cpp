#include "megatron/data/line_reader.h"

#include <gmock/gmock.h>
#include <zlib.h>

#include <fstream>
#include <random>

#include "megatron/core/error.h"
#include "tests/data/read_lines.h"
#include "tests/support/message_of.h"
#include "tests/support/temporary_directory.h"

namespace megatron {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

std::filesystem::path write(const std::filesystem::path& path, const std::string& content) {
  std::ofstream(path, std::ios::binary) << content;
  return path;
}

TEST(LineReader, EveryKindOfLineEnd) {
  const TemporaryDirectory directory;
  const auto file = write(directory.path() / "a.txt", "one\ntwo\r\nthree\rfour\n\n\r\rlast");
  for (const size_t chunk_bytes : {1u, 2u, 3u, 4u, 5u, 7u, 100u}) {
    EXPECT_THAT(read_lines(file, chunk_bytes),
                ElementsAre("one", "two", "three", "four", "", "", "", "last"))
        << chunk_bytes;
  }
}

TEST(LineReader, OtherSeparatorsStayInTheLine) {
  const TemporaryDirectory directory;
  const auto file = write(directory.path() / "a.txt",
                          "a\xC2\x85"
                          "b\xE2\x80\xA8"
                          "c\v\f\x1C\n");
  EXPECT_THAT(read_lines(file, 100), ElementsAre("a\xC2\x85"
                                                 "b\xE2\x80\xA8"
                                                 "c\v\f\x1C"));
}

TEST(LineReader, AnEmptyFileHasNoLines) {
  const TemporaryDirectory directory;
  EXPECT_THAT(read_lines(write(directory.path() / "a.txt", ""), 100), ElementsAre());
  EXPECT_THAT(read_lines(write(directory.path() / "b.txt", "\n"), 100), ElementsAre(""));
}

TEST(LineReader, ChunkSizesDoNotMatter) {
  const TemporaryDirectory directory;
  std::mt19937 random(11);
  std::string content;
  for (int i = 0; i < 3000; ++i) content += "ab\r\n"[random() % 4];
  const auto file = write(directory.path() / "a.txt", content);
  const std::vector<std::string> want = read_lines(file, 1 << 20);
  for (const size_t chunk_bytes : {1u, 3u, 16u, 61u})
    EXPECT_EQ(read_lines(file, chunk_bytes), want);
}

TEST(LineReader, UnpacksGzipFiles) {
  const TemporaryDirectory directory;
  const std::filesystem::path file = directory.path() / "a.jsonl.gz";
  std::string content;
  for (int i = 0; i < 5000; ++i) content += "line " + std::to_string(i) + "\n";
  gzFile packed = gzopen(file.c_str(), "wb");
  gzwrite(packed, content.data(), static_cast<unsigned>(content.size()));
  gzclose(packed);
  const std::vector<std::string> lines = read_lines(file, 1000);
  ASSERT_EQ(lines.size(), 5000u);
  EXPECT_EQ(lines.back(), "line 4999");

  std::filesystem::resize_file(file, std::filesystem::file_size(file) / 2);
  EXPECT_THAT(message_of([&] { read_lines(file, 1000); }), HasSubstr("a.jsonl.gz: damaged gzip"));
}

TEST(LineReader, ALineHasALimit) {
  const TemporaryDirectory directory;
  const std::string text = "ab\n" + std::string(40, 'c');
  const auto read = [&](const std::filesystem::path& path, size_t most) {
    LineReader reader(path, 8, most);
    LineChunk chunk;
    size_t longest = 0;
    while (reader.next(chunk)) {
      for (const std::string_view line : chunk.lines) longest = std::max(longest, line.size());
    }
    return longest;
  };
  const auto plain = write(directory.path() / "long.txt", text);
  const auto with_end = write(directory.path() / "with_end.txt", text + "\nab\n");
  const auto packed = directory.path() / "long.gz";
  gzFile file = gzopen(packed.c_str(), "wb");
  gzwrite(file, text.data(), static_cast<unsigned>(text.size()));
  gzclose(file);
  for (const std::filesystem::path& path : {plain, with_end, packed}) {
    EXPECT_EQ(read(path, 40), 40);
    EXPECT_THAT(message_of<FormatError>([&] { read(path, 39); }),
                AllOf(HasSubstr(path.string() + ": line 2 is longer than 39 bytes; split this")));
  }
}

TEST(LineReader, OtherPackedFilesAreNamed) {
  const TemporaryDirectory directory;
  const auto zst = write(directory.path() / "a.jsonl", "\x28\xb5\x2f\xfd.....");
  EXPECT_THAT(message_of([&] { LineReader reader(zst); }),
              HasSubstr("a.jsonl: this is a Zstandard file; unpack it"));
  const auto bz2 = write(directory.path() / "b.jsonl", "BZh91AY&SY");
  EXPECT_THAT(message_of([&] { LineReader reader(bz2); }), HasSubstr("this is a bzip2 file"));
}

TEST(LineReader, ErrorsNameTheFile) {
  const TemporaryDirectory directory;
  EXPECT_THAT(message_of([] { LineReader("/nowhere/a.txt"); }),
              HasSubstr("/nowhere/a.txt: cannot open: No such file"));
  EXPECT_THAT(message_of([&] { LineReader reader(directory.path()); }),
              HasSubstr("cannot open: Is a directory"));
}

}  // namespace
}  // namespace megatron

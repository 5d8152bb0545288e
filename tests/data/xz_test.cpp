#include <gmock/gmock.h>
#include <lzma.h>

#include <string>
#include <vector>

#include "megatron/data/line_reader.h"
#include "tests/data/read_lines.h"
#include "tests/support/message_of.h"
#include "tests/support/temporary_directory.h"

namespace megatron {
namespace {

using testing::HasSubstr;

std::string packed_with_xz(const std::string& content) {
  std::string packed(::lzma_stream_buffer_bound(content.size()), '\0');
  size_t size = 0;
  EXPECT_EQ(::lzma_easy_buffer_encode(
                6, LZMA_CHECK_CRC64, nullptr, reinterpret_cast<const uint8_t*>(content.data()),
                content.size(), reinterpret_cast<uint8_t*>(packed.data()), &size, packed.size()),
            LZMA_OK);
  return packed.substr(0, size);
}

TEST(LineReader, UnpacksXzFiles) {
  const TemporaryDirectory directory;
  std::string content;
  for (int i = 0; i < 200000; ++i) content += "line " + std::to_string(i) + "\n";
  // Two streams, as `cat` joins packed files; the name says nothing.
  const std::string packed = packed_with_xz(content);
  const auto file = directory.write("a.jsonl", packed + packed_with_xz("the last"));
  const std::vector<std::string> lines = read_lines(file, 1000);
  ASSERT_EQ(lines.size(), 200001u);
  EXPECT_EQ(lines[199999], "line 199999");
  EXPECT_EQ(lines.back(), "the last");

  const auto cut = directory.write("cut.xz", packed.substr(0, packed.size() / 2));
  EXPECT_THAT(message_of([&] { read_lines(cut, 1000); }),
              HasSubstr("cut.xz: damaged xz file: it ends too early"));
  std::string flipped = packed;
  flipped[flipped.size() / 2] ^= 1;
  const auto damaged = directory.write("bad.xz", flipped);
  EXPECT_THAT(message_of([&] { read_lines(damaged, 1000); }),
              HasSubstr("bad.xz: damaged xz file: its data or checksums are wrong"));
}

}  // namespace
}  // namespace megatron

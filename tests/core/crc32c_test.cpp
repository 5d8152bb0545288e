#include "megatron/core/crc32c.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <string_view>
#include <vector>

namespace megatron {
namespace {

std::span<const std::byte> bytes(std::string_view text) { return std::as_bytes(std::span(text)); }

std::vector<std::byte> pattern(size_t size) {
  std::vector<std::byte> data(size);
  uint32_t state = 1;
  for (std::byte& byte : data) {
    state = state * 1664525u + 1013904223u;
    byte = static_cast<std::byte>(state >> 24);
  }
  return data;
}

// RFC 3720, appendix B.4.
TEST(Crc32cTest, KnownVectors) {
  std::vector<std::byte> data(32, std::byte{0});
  EXPECT_EQ(crc32c(data), 0x8A9136AAu);
  std::ranges::fill(data, std::byte{0xff});
  EXPECT_EQ(crc32c(data), 0x62A8AB43u);
  for (size_t i = 0; i < data.size(); ++i) data[i] = static_cast<std::byte>(i);
  EXPECT_EQ(crc32c(data), 0x46DD794Eu);
  for (size_t i = 0; i < data.size(); ++i) data[i] = static_cast<std::byte>(31 - i);
  EXPECT_EQ(crc32c(data), 0x113FDB5Cu);
  EXPECT_EQ(crc32c(bytes("123456789")), 0xE3069283u);
  EXPECT_EQ(crc32c({}), 0u);
}

TEST(Crc32Test, KnownVectors) {
  EXPECT_EQ(crc32(bytes("123456789")), 0xCBF43926u);
  EXPECT_EQ(crc32(bytes("6789"), crc32(bytes("12345"))), 0xCBF43926u);
  EXPECT_EQ(crc32(bytes("The quick brown fox jumps over the lazy dog")), 0x414FA339u);
  EXPECT_EQ(crc32({}), 0u);
}

TEST(Crc32cTest, InstructionEqualsTable) {
  const std::vector<std::byte> data = pattern(300);
  for (size_t begin = 0; begin < 9; ++begin) {
    for (size_t size = 0; size + begin <= data.size(); size += 7) {
      const auto part = std::span(data).subspan(begin, size);
      EXPECT_EQ(crc32c(part), crc32c_by_table(part));
      EXPECT_EQ(crc32(part, 0x12345678u), crc32_by_table(part, 0x12345678u));
    }
  }
}

TEST(Crc32cTest, Continues) {
  const std::vector<std::byte> data = pattern(100);
  for (size_t cut = 0; cut <= data.size(); ++cut) {
    const auto all = std::span<const std::byte>(data);
    EXPECT_EQ(crc32c(all.subspan(cut), crc32c(all.first(cut))), crc32c(all));
  }
}

}  // namespace
}  // namespace megatron

#include "megatron/data/md5.h"

#include <fmt/format.h>

#include <array>
#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>

namespace megatron {
namespace {

constexpr size_t kBlockBytes = 64;
using State = std::array<uint32_t, 4>;

// floor(2^32 * |sin(i + 1)|): exact, since no value is near an integer in double precision.
std::array<uint32_t, 64> sine_table() {
  std::array<uint32_t, 64> table;
  for (size_t i = 0; i < table.size(); ++i) {
    table[i] = static_cast<uint32_t>(std::fabs(std::sin(static_cast<double>(i + 1))) * 0x1p32);
  }
  return table;
}

void digest_block(State& state, const char* block, const std::array<uint32_t, 64>& sines) {
  constexpr int kRotations[4][4] = {
      {7, 12, 17, 22}, {5, 9, 14, 20}, {4, 11, 16, 23}, {6, 10, 15, 21}};
  std::array<uint32_t, 16> words;
  std::memcpy(words.data(), block, kBlockBytes);
  auto [a, b, c, d] = state;
  for (size_t i = 0; i < 64; ++i) {
    const size_t round = i / 16;
    uint32_t mixed = 0;
    size_t word = i;
    switch (round) {
      case 0:
        mixed = (b & c) | (~b & d);
        break;
      case 1:
        mixed = (d & b) | (~d & c);
        word = 5 * i + 1;
        break;
      case 2:
        mixed = b ^ c ^ d;
        word = 3 * i + 5;
        break;
      default:
        mixed = c ^ (b | ~d);
        word = 7 * i;
    }
    const uint32_t sum = a + mixed + sines[i] + words[word % 16];
    a = d;
    d = c;
    c = b;
    b += std::rotl(sum, kRotations[round][i % 4]);
  }
  state = {state[0] + a, state[1] + b, state[2] + c, state[3] + d};
}

}  // namespace

std::string md5_hex(std::string_view text) {
  // Padding: a one bit, zeros up to 56 modulo 64, then the length in bits.
  std::string message(text);
  message.push_back('\x80');
  while (message.size() % kBlockBytes != 56) message.push_back('\0');
  const uint64_t bits = uint64_t{text.size()} * 8;
  message.append(reinterpret_cast<const char*>(&bits), sizeof(bits));

  const std::array<uint32_t, 64> sines = sine_table();
  State state = {0x67452301U, 0xefcdab89U, 0x98badcfeU, 0x10325476U};
  for (size_t at = 0; at < message.size(); at += kBlockBytes) {
    digest_block(state, message.data() + at, sines);
  }
  std::string hex;
  for (const uint32_t word : state) hex += fmt::format("{:08x}", __builtin_bswap32(word));
  return hex;
}

}  // namespace megatron

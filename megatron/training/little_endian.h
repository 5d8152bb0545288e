#pragma once

#include <cstddef>
#include <string>

namespace megatron {

// Appends the bytes of an unsigned integer, the lowest first.
template <class T>
void append_little_endian(std::string& text, T value) {
  for (size_t i = 0; i < sizeof(T); ++i) text += static_cast<char>(value >> (8 * i) & 0xff);
}

}  // namespace megatron

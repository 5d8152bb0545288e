#pragma once

#include <cstdint>
#include <cstring>
#include <string_view>

#include "megatron/core/error.h"

namespace megatron {

// Element types of the tokens of a dataset. On disk: never renumber. Codes 6 and 7 (floating point)
// are never token data.
enum class TokenDtype : uint8_t {
  kUint8 = 1,
  kInt8 = 2,
  kInt16 = 3,
  kInt32 = 4,
  kInt64 = 5,
  kUint16 = 8,
};

// Bytes of one token.
int64_t token_bytes(TokenDtype dtype);
// "uint16", "int32", ...
std::string_view token_dtype_name(TokenDtype dtype);
// The type that Megatron writes: uint16 below 65500 ids, else int32. `vocab_size` is unpadded.
TokenDtype token_dtype_for_vocab(int64_t vocab_size);

// Calls visit(T{}) with the C++ type of the tokens.
template <class Visit>
decltype(auto) with_token_type(TokenDtype dtype, const Visit& visit) {
  switch (dtype) {
    case TokenDtype::kUint8:
      return visit(uint8_t{});
    case TokenDtype::kInt8:
      return visit(int8_t{});
    case TokenDtype::kInt16:
      return visit(int16_t{});
    case TokenDtype::kInt32:
      return visit(int32_t{});
    case TokenDtype::kInt64:
      return visit(int64_t{});
    case TokenDtype::kUint16:
      return visit(uint16_t{});
  }
  throw InternalError("TokenDtype out of range");
}

// The value at position `index` of an array that may start at any address.
template <class T, class Byte>
T load_unaligned(const Byte* from, int64_t index = 0) {
  T value;
  std::memcpy(&value, from + index * static_cast<int64_t>(sizeof(T)), sizeof(T));
  return value;
}

}  // namespace megatron

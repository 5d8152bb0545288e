#include "megatron/data/token_dtype.h"

namespace megatron {

int64_t token_bytes(TokenDtype dtype) {
  return with_token_type(dtype, [](auto token) { return static_cast<int64_t>(sizeof(token)); });
}

std::string_view token_dtype_name(TokenDtype dtype) {
  switch (dtype) {
    case TokenDtype::kUint8:
      return "uint8";
    case TokenDtype::kInt8:
      return "int8";
    case TokenDtype::kInt16:
      return "int16";
    case TokenDtype::kInt32:
      return "int32";
    case TokenDtype::kInt64:
      return "int64";
    case TokenDtype::kUint16:
      return "uint16";
  }
  throw InternalError("TokenDtype out of range");
}

TokenDtype token_dtype_for_vocab(int64_t vocab_size) {
  return vocab_size < 65500 ? TokenDtype::kUint16 : TokenDtype::kInt32;
}

}  // namespace megatron

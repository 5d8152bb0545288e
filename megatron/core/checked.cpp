#include "megatron/core/checked.h"

#include <string>

#include "megatron/core/error.h"

namespace megatron {

int64_t checked_product(std::span<const int64_t> sizes, std::string_view what) {
  int64_t product = 1;
  bool is_empty = false;
  bool is_wrong = false;
  for (const int64_t size : sizes) {
    is_wrong |= size < 0;
    is_empty |= size == 0;
    is_wrong |= size != 0 && __builtin_mul_overflow(product, size, &product);
  }
  if (!is_wrong) return is_empty ? 0 : product;
  std::string text(what);
  for (size_t i = 0; i < sizes.size(); ++i) {
    text += (i == 0 ? ": " : " x ") + std::to_string(sizes[i]);
  }
  throw ShapeError(text + " is negative or exceeds 2^63 - 1; check the sizes");
}

}  // namespace megatron

#pragma once

#include <cstdint>
#include <initializer_list>
#include <span>
#include <string_view>

namespace megatron {

// The product of sizes that may come from files, flags or peers. Throws ShapeError, which begins
// with `what`, if a size is negative or the product exceeds 2^63 - 1.
int64_t checked_product(std::span<const int64_t> sizes, std::string_view what);
inline int64_t checked_product(std::initializer_list<int64_t> sizes, std::string_view what) {
  return checked_product(std::span<const int64_t>(sizes.begin(), sizes.size()), what);
}

}  // namespace megatron

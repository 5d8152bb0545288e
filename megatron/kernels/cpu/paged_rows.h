#pragma once

#include <algorithm>
#include <type_traits>

#include "megatron/core/float8.h"
#include "megatron/kernels/paged_attention.h"

namespace megatron::kernels::cpu {

// Key or value of a token and a group.
enum Kind { kKey, kValue };

inline TensorView store_of(const KeyValuePages& pages, Kind kind) {
  return kind == kKey ? pages.keys : pages.values;
}

// The keys or values of one row and one group, page by page. S: the model's type, or Float8E4M3.
template <class S>
struct PagedRows {
  const S* data;
  const float* scales;  // of S = Float8E4M3
  const int32_t* pages;
  int64_t page_tokens, groups, group, d;

  PagedRows(const KeyValuePages& store, Kind kind, const int32_t* row_pages, int64_t the_group)
      : data(store_of(store, kind).as<S>()),
        scales(store.has_scales() ? store.scales.as<float>() + kind : nullptr),
        pages(row_pages),
        page_tokens(store.page_tokens()),
        groups(store.keys.size(2)),
        group(the_group),
        d(store_of(store, kind).size(3)) {}

  // Calls f(index, elements, scale) for tokens [begin, length); the scale is 1 without FP8.
  template <class F>
  void each(int64_t begin, int64_t length, const F& f) const {
    for (int64_t first = begin, end = 0; first < length; first = end) {
      const int64_t page = first / page_tokens;
      int64_t head = (pages[page] * page_tokens + first % page_tokens) * groups + group;
      end = std::min(length, (page + 1) * page_tokens);
      for (int64_t j = first; j < end; ++j, head += groups) {
        f(j, data + head * d, std::is_same_v<S, Float8E4M3> ? scales[head * 2] : 1.0f);
      }
    }
  }
};

// Element i of `channels` times the scale, which 16 and 32 bits do not have.
template <class S>
void widen(float* to, const S* elements, float scale, int64_t channels) {
  for (int64_t c = 0; c < channels; ++c) {
    to[c] = static_cast<float>(elements[c]);
    if constexpr (std::is_same_v<S, Float8E4M3>) to[c] *= scale;
  }
}

// Calls f.operator()<T, S>() with the types of the model and of its pages.
template <class F>
void dispatch_pages(DType dtype, const KeyValuePages& pages, const char* who, const F& f) {
  dispatch_floating(dtype, who, [&]<class T>() {
    if (pages.has_scales()) return f.template operator()<T, Float8E4M3>();
    f.template operator()<T, T>();
  });
}

}  // namespace megatron::kernels::cpu

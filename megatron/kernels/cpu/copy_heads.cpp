#include "megatron/kernels/copy_heads.h"

#include <algorithm>
#include <cstring>

#include "megatron/core/parallel_for.h"

namespace megatron::kernels::cpu {

void copy_heads(const HeadsView& dst, const ConstHeadsView& src, Stream) {
  const int64_t width = size_of(dst.dtype);
  const auto bytes = static_cast<size_t>(dst.d * width);
  const int64_t grain =
      std::max<int64_t>(1, 16384 / std::max<int64_t>(1, dst.b * dst.heads * dst.d));
  parallel_for(dst.s, grain, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      for (int64_t j = 0; j < dst.b; ++j) {
        for (int64_t h = 0; h < dst.heads; ++h) {
          std::memcpy(
              static_cast<char*>(dst.data) + (i * dst.stride_s + dst.offset(j, h)) * width,
              static_cast<const char*>(src.data) + (i * src.stride_s + src.offset(j, h)) * width,
              bytes);
        }
      }
    }
  });
}

}  // namespace megatron::kernels::cpu

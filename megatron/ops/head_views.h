#pragma once

#include <cstdint>
#include <type_traits>

#include "megatron/kernels/attention.h"
#include "megatron/ops/rotary.h"

// Parts of the heads of latent attention, which several kernels read and write.
namespace megatron {

// The channels [begin, begin + count) of every head.
template <class View>
View channels_of(View heads, int64_t begin, int64_t count) {
  // void pointers have no arithmetic; elements of heads are bytes of their dtype's size.
  using Byte = std::conditional_t<std::is_same_v<decltype(heads.data), void*>, char, const char>;
  heads.data = static_cast<Byte*>(heads.data) + begin * size_of(heads.dtype);
  heads.d = count;
  return heads;
}

// One head that stands for `count` equal ones.
inline kernels::ConstHeadsView repeated_head(kernels::ConstHeadsView head, int64_t count) {
  head.heads = count;
  head.heads_per_group = count;
  head.stride_head = 0;
  return head;
}

// The rotation of heads of interleaved pairs in place; none if the table is undefined.
struct LatentRotation {
  Tensor table;
  RotaryPositions positions;

  void apply(const kernels::HeadsView& x, bool inverse, Stream stream) const {
    if (!table.defined()) return;
    const ConstView ids =
        positions.position_ids.defined() ? positions.position_ids.view() : ConstView{};
    kernels::rotary_inplace(x, table.view(), ids, positions.offset,
                            kernels::RotaryPairs::kInterleaved, inverse, stream);
  }
};

}  // namespace megatron

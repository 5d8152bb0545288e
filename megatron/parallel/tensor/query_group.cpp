#include "megatron/parallel/tensor/query_group.h"

#include <cstddef>
#include <type_traits>
#include <utility>

#include "megatron/device/trace.h"
#include "megatron/kernels/copy_heads.h"
#include "megatron/parallel/tensor/mappings.h"

namespace megatron {
namespace {

// Heads [first, first + count), all of one group.
template <class View>
View heads_within(View heads, int64_t first, int64_t count) {
  using Byte =
      std::conditional_t<std::is_same_v<View, kernels::HeadsView>, std::byte, const std::byte>;
  heads.data = static_cast<Byte*>(heads.data) + heads.offset(0, first) * size_of(heads.dtype);
  heads.heads = count;
  heads.heads_per_group = count;
  return heads;
}

// The parts of a whole projection that belong to a rank.
template <class View>
kernels::Qkv<View> own_heads(const kernels::Qkv<View>& whole, const TensorParallel& tp) {
  const int64_t count = whole.q.heads / tp.size();
  const int64_t group = whole.k.heads * tp.rank() / tp.size();
  return {heads_within(whole.q, count * tp.rank(), count), heads_within(whole.k, group, 1),
          heads_within(whole.v, group, 1)};
}

template <class From>
void copy_qkv(const kernels::Qkv<kernels::HeadsView>& to, const kernels::Qkv<From>& from,
              Stream stream) {
  kernels::copy_heads(to.q, from.q, stream);
  kernels::copy_heads(to.k, from.k, stream);
  kernels::copy_heads(to.v, from.v, stream);
}

}  // namespace

Variable gather_query_group(const Variable& part, int64_t heads, int64_t groups,
                            const TensorParallel& tp) {
  const TraceRange range("gather_query_group", part.stream());
  const Tensor whole = gathered_last_axis(part.data(), tp.group);
  const int64_t d = whole.size(2) / (heads + 2 * groups);
  const int64_t count = heads / tp.size();
  Tensor y(whole.shape().with(2, (count + 2) * d), whole.dtype(), whole.stream());
  copy_qkv(kernels::split_qkv(y.view(), count, 1),
           own_heads(kernels::split_qkv(whole.view(), heads, groups), tp), y.stream());
  return record(
      "gather_query_group", std::move(y), {part},
      [shape = whole.shape(), heads, groups, tp](const Tensor& dy, const Wants&) -> Grads {
        Tensor dwhole = zeros(shape, dy.dtype(), dy.stream());
        copy_qkv(own_heads(kernels::split_qkv(dwhole.view(), heads, groups), tp),
                 kernels::split_qkv(dy.view(), heads / tp.size(), 1), dy.stream());
        return {scattered_sum_of_last_axis(dwhole, tp.group)};
      });
}

}  // namespace megatron

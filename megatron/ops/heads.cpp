#include "megatron/ops/heads.h"

#include <utility>
#include <vector>

#include "megatron/device/trace.h"
#include "megatron/kernels/attention.h"
#include "megatron/kernels/copy_heads.h"

namespace megatron {
namespace {

// The heads of x [s, b, heads, d].
template <class T>
auto views_of(T& x) {
  return kernels::heads_of(x.reshape({x.size(0), x.size(1), x.size(2) * x.size(3)}).view(),
                           x.size(2));
}

// q, k and v, copied out of a fused projection.
std::vector<Tensor> parts_of(const Tensor& qkv, int64_t num_heads, int64_t num_groups) {
  const auto from = kernels::split_qkv(qkv.view(), num_heads, num_groups);
  std::vector<Tensor> parts;
  for (const kernels::ConstHeadsView& part : {from.q, from.k, from.v}) {
    Tensor copy({part.s, part.b, part.heads, part.d}, qkv.dtype(), qkv.stream());
    kernels::copy_heads(views_of(copy), part, qkv.stream());
    parts.push_back(std::move(copy));
  }
  return parts;
}

// The fused projection of q, k and v; zero where a part is undefined.
Tensor fused(const std::vector<Tensor>& parts, const Shape& shape, int64_t num_heads,
             int64_t num_groups) {
  const Tensor& some = parts[0].defined() ? parts[0] : parts[1].defined() ? parts[1] : parts[2];
  bool is_whole = true;
  for (const Tensor& part : parts) is_whole = is_whole && part.defined();
  Tensor qkv = is_whole ? Tensor(shape, some.dtype(), some.stream())
                        : zeros(shape, some.dtype(), some.stream());
  const auto to = kernels::split_qkv(qkv.view(), num_heads, num_groups);
  size_t i = 0;
  for (const kernels::HeadsView& part : {to.q, to.k, to.v}) {
    if (parts[i].defined()) kernels::copy_heads(part, views_of(parts[i]), qkv.stream());
    i += 1;
  }
  return qkv;
}

}  // namespace

Heads split_heads(const Variable& qkv, int64_t num_heads, int64_t num_groups) {
  const TraceRange range("split_heads", qkv.stream());
  std::vector<Variable> parts =
      record_outputs("split_heads", parts_of(qkv.data(), num_heads, num_groups), {qkv},
                     [shape = qkv.shape(), num_heads, num_groups](const std::vector<Tensor>& dys,
                                                                  const Wants&) -> Grads {
                       return {fused(dys, shape, num_heads, num_groups)};
                     });
  return {parts[0], parts[1], parts[2]};
}

Variable join_heads(const Heads& heads) {
  const TraceRange range("join_heads", heads.q.stream());
  const int64_t num_heads = heads.q.size(2);
  const int64_t num_groups = heads.k.size(2);
  const Shape shape = {heads.q.size(0), heads.q.size(1),
                       (num_heads + 2 * num_groups) * heads.q.size(3)};
  Tensor qkv =
      fused({heads.q.data(), heads.k.data(), heads.v.data()}, shape, num_heads, num_groups);
  return record("join_heads", std::move(qkv), {heads.q, heads.k, heads.v},
                [num_heads, num_groups](const Tensor& dy, const Wants&) -> Grads {
                  return parts_of(dy, num_heads, num_groups);
                });
}

}  // namespace megatron

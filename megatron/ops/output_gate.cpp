#include "megatron/ops/output_gate.h"

#include <array>
#include <utility>
#include <vector>

#include "megatron/core/error.h"
#include "megatron/device/trace.h"
#include "megatron/kernels/attention.h"
#include "megatron/kernels/copy_heads.h"
#include "megatron/kernels/output_gate.h"

namespace megatron {
namespace {

// Queries, gates, keys and values of the projection.
template <class View, class Whole>
std::array<View, 4> projected_heads(Whole x, int64_t num_heads, int64_t num_groups) {
  const int64_t d = x.size(2) / (2 * num_heads + 2 * num_groups);
  expect_shape(x.shape, {x.size(0), x.size(1), (2 * num_heads + 2 * num_groups) * d},
               "output gate: projection");
  const int64_t per_group = num_heads / num_groups;
  // Without the gates, each group is a multi-query projection of twice as many heads.
  const auto twice = kernels::split_qkv(x, 2 * num_heads, num_groups);
  View q = twice.q;
  q.heads = num_heads;
  q.heads_per_group = per_group;
  View gate = q;
  using Byte = std::conditional_t<std::is_same_v<View, kernels::HeadsView>, char, const char>;
  gate.data = static_cast<Byte*>(q.data) + per_group * d * size_of(q.dtype);
  return {q, gate, twice.k, twice.v};
}

// The parts of `to`, of which qkv or the gate may be undefined, from or into the projection.
std::array<kernels::HeadsView, 4> part_heads(Tensor& qkv, Tensor& gate, int64_t num_heads,
                                             int64_t num_groups) {
  const auto heads = kernels::split_qkv(qkv.view(), num_heads, num_groups);
  return {heads.q, kernels::heads_of(gate.view(), num_heads), heads.k, heads.v};
}

}  // namespace

GatedProjection split_output_gate(const Variable& projection, int64_t num_heads,
                                  int64_t num_groups) {
  const TraceRange range("split_output_gate", projection.stream());
  const Tensor& from = projection.data();
  const int64_t s = from.size(0), b = from.size(1);
  const int64_t d = from.size(2) / (2 * num_heads + 2 * num_groups);
  Tensor qkv({s, b, (num_heads + 2 * num_groups) * d}, from.dtype(), from.stream());
  Tensor gate({s, b, num_heads * d}, from.dtype(), from.stream());
  const auto whole = projected_heads<kernels::ConstHeadsView>(from.view(), num_heads, num_groups);
  const auto parts = part_heads(qkv, gate, num_heads, num_groups);
  for (size_t i = 0; i < parts.size(); ++i) kernels::copy_heads(parts[i], whole[i], from.stream());
  std::vector<Variable> made = record_outputs(
      "split_output_gate", {qkv, gate}, {projection},
      [shape = from.shape(), num_heads, num_groups](const std::vector<Tensor>& dys,
                                                    const Wants&) -> Grads {
        invariant(dys[0].defined() && dys[1].defined(), "attention reads both of its parts");
        Tensor dqkv = dys[0], dgate = dys[1];
        Tensor gradient(shape, dqkv.dtype(), dqkv.stream());
        const auto to = projected_heads<kernels::HeadsView>(gradient.view(), num_heads, num_groups);
        const auto parts_of = part_heads(dqkv, dgate, num_heads, num_groups);
        for (size_t i = 0; i < to.size(); ++i) {
          kernels::copy_heads(to[i], parts_of[i], gradient.stream());
        }
        return {std::move(gradient)};
      });
  return {made[0], made[1]};
}

Variable output_gate(const Variable& x, const Variable& gate) {
  const TraceRange range("output_gate", x.stream());
  Tensor y = empty_like(x.data());
  kernels::output_gate_forward(y.view(), x.data().view(), gate.data().view(), y.stream());
  return record("output_gate", y, {x, gate},
                [x = x.data(), gate = gate.data()](const Tensor& dy, const Wants&) -> Grads {
                  Tensor dx = empty_like(x);
                  Tensor dgate = empty_like(gate);
                  kernels::output_gate_backward(dx.view(), dgate.view(), dy.view(), x.view(),
                                                gate.view(), dy.stream());
                  return {std::move(dx), std::move(dgate)};
                });
}

}  // namespace megatron

#include "megatron/ops/attention.h"

#include <bit>
#include <cmath>
#include <utility>

#include "megatron/device/trace.h"
#include "megatron/kernels/attention.h"
#include "megatron/ops/optional_view.h"
#include "megatron/ops/workspace.h"

namespace megatron {
namespace {

using kernels::AttentionSettings;

int64_t num_groups(const AttentionOptions& options) {
  return options.num_query_groups != 0 ? options.num_query_groups : options.num_heads;
}

AttentionSettings with_terms(AttentionSettings settings, const Tensor& relative_bias,
                             const Tensor& sinks) {
  settings.relative_bias = view_or_none(relative_bias);
  settings.sinks = view_or_none(sinks);
  return settings;
}

Tensor data_or_none(const Variable& x) { return x.defined() ? x.data() : Tensor(); }

// Queries [sq, c b, n d] of c sequences that share their keys: as heads of b sequences, those that
// share a key one after the other.
template <class View>
auto sharing_heads(View q, int64_t heads, int64_t c) {
  auto view = kernels::heads_of(q, heads);
  if (c == 1) return view;
  view.b /= c;
  view.heads *= c;
  view.heads_per_group = c;
  view.stride_head = view.stride_b;
  view.stride_b *= c;
  return view;
}

// The settings of these heads.
AttentionSettings sharing_settings(AttentionSettings settings, int64_t c) {
  settings.first_head *= c;
  settings.dropout.parts_of_sample /= c;
  return settings;
}

}  // namespace

AttentionSettings attention_settings(const AttentionOptions& options, int64_t head_size) {
  return {.scale = options.softmax_scale != 0 ? options.softmax_scale
                                              : 1.0f / std::sqrt(static_cast<float>(head_size)),
          .is_causal = options.is_causal,
          .query_offset = 0,
          .document_starts = view_or_none(options.document_starts),
          .prefix_ends = view_or_none(options.prefix_ends),
          .key_padding_mask = view_or_none(options.key_padding_mask),
          .window = options.window,
          .logit_cap = options.logit_cap,
          .alibi_slopes = view_or_none(options.alibi_slopes),
          .relative_bias = {},
          .dropout = options.dropout,
          .first_head = options.first_head};
}

void attention_gradients(kernels::HeadsView dq, kernels::HeadsView dk, kernels::HeadsView dv,
                         TensorView drelative_bias, kernels::ConstHeadsView dy,
                         kernels::ConstHeadsView y, ConstView lse, kernels::ConstHeadsView q,
                         kernels::ConstHeadsView k, kernels::ConstHeadsView v,
                         const AttentionSettings& settings, Stream stream) {
  Workspace workspace(kernels::attention_backward_workspace_bytes(dq, dk, dv, dy, y, lse, q, k, v,
                                                                  settings, stream),
                      stream);
  kernels::attention_backward(dq, dk, dv, drelative_bias, dy, y, lse, q, k, v, settings,
                              workspace.view(), stream);
}

void attention_without_gradient(kernels::HeadsView y, TensorView lse, kernels::ConstHeadsView q,
                                kernels::ConstHeadsView k, kernels::ConstHeadsView v,
                                const AttentionSettings& settings, Stream stream) {
  Workspace workspace(kernels::attention_forward_workspace_bytes(y, lse, q, k, v, settings, stream),
                      stream);
  kernels::attention_forward(y, lse, q, k, v, settings, workspace.view(), stream);
}

Tensor sink_gradients(const Tensor& sinks, const Tensor& dy, const Tensor& y, const Tensor& lse) {
  const int64_t heads = sinks.numel();
  Tensor dsinks = empty_like(sinks);
  kernels::attention_sink_gradients(dsinks.view(), kernels::heads_of(dy.view(), heads),
                                    kernels::heads_of(y.view(), heads), lse.view(), sinks.view(),
                                    y.stream());
  return dsinks;
}

Variable attention(const Variable& qkv, const AttentionOptions& options,
                   const Variable& relative_bias, const Variable& sink_scores) {
  const TraceRange range("attention", qkv.stream());
  const int64_t heads = options.num_heads;
  const auto in = kernels::split_qkv(qkv.data().view(), heads, num_groups(options));
  Tensor y({in.q.s, in.q.b, heads * in.q.d}, qkv.dtype(), qkv.stream());
  Tensor lse({in.q.b, heads, in.q.s}, DType::kFloat32, qkv.stream());
  const Tensor bias = data_or_none(relative_bias);
  const Tensor sinks = data_or_none(sink_scores);
  attention_without_gradient(kernels::heads_of(y.view(), heads), lse.view(), in.q, in.k, in.v,
                             with_terms(attention_settings(options, in.q.d), bias, sinks),
                             y.stream());
  return record("attention", y, {qkv, relative_bias, sink_scores},
                [qkv = qkv.data(), bias, sinks, y, lse, options](const Tensor& dy,
                                                                 const Wants& wants) -> Grads {
                  const int64_t n = options.num_heads;
                  Tensor dqkv = empty_like(qkv);
                  Tensor dbias = wants[1] ? empty_like(bias) : Tensor();
                  const auto saved = kernels::split_qkv(qkv.view(), n, num_groups(options));
                  const auto grad = kernels::split_qkv(dqkv.view(), n, num_groups(options));
                  attention_gradients(
                      grad.q, grad.k, grad.v, wants[1] ? dbias.view() : TensorView{},
                      kernels::heads_of(dy.view(), n), kernels::heads_of(y.view(), n), lse.view(),
                      saved.q, saved.k, saved.v,
                      with_terms(attention_settings(options, saved.q.d), bias, sinks),
                      qkv.stream());
                  return {std::move(dqkv), std::move(dbias),
                          wants[2] ? sink_gradients(sinks, dy, y, lse) : Tensor()};
                });
}

Variable cross_attention(const Variable& q, const Variable& kv, const AttentionOptions& options) {
  const TraceRange range("cross_attention", q.stream());
  const int64_t heads = options.num_heads;
  const int64_t c = q.size(1) / kv.size(1);
  expect_shape(q.shape(), {q.size(0), c * kv.size(1), q.size(2)}, "cross_attention: q");
  const auto q_heads = sharing_heads(q.data().view(), heads, c);
  const auto kv_heads = kernels::split_kv(kv.data().view(), heads);
  Tensor y = empty_like(q.data());
  Tensor lse({q_heads.b, q_heads.heads, q_heads.s}, DType::kFloat32, q.stream());
  attention_without_gradient(
      sharing_heads(y.view(), heads, c), lse.view(), q_heads, kv_heads.k, kv_heads.v,
      sharing_settings(attention_settings(options, q_heads.d), c), y.stream());
  return record(
      "cross_attention", y, {q, kv},
      [q = q.data(), kv = kv.data(), y, lse, options, c](const Tensor& dy, const Wants&) -> Grads {
        const int64_t n = options.num_heads;
        Tensor dq = empty_like(q);
        Tensor dkv = empty_like(kv);
        const auto saved_q = sharing_heads(q.view(), n, c);
        const auto saved = kernels::split_kv(kv.view(), n);
        const auto grad = kernels::split_kv(dkv.view(), n);
        attention_gradients(sharing_heads(dq.view(), n, c), grad.k, grad.v, TensorView{},
                            sharing_heads(dy.view(), n, c), sharing_heads(y.view(), n, c),
                            lse.view(), saved_q, saved.k, saved.v,
                            sharing_settings(attention_settings(options, saved_q.d), c),
                            q.stream());
        return {std::move(dq), std::move(dkv)};
      });
}

std::vector<float> alibi_slopes(int64_t num_heads) {
  const auto geometric = [](int64_t n, int64_t step, int64_t count, std::vector<float>& slopes) {
    for (int64_t i = 0; i < count; ++i) {
      const double power = -8.0 * static_cast<double>(i * step + 1) / static_cast<double>(n);
      slopes.push_back(static_cast<float>(std::exp2(power)));
    }
  };
  std::vector<float> slopes;
  const auto base = static_cast<int64_t>(std::bit_floor(static_cast<uint64_t>(num_heads)));
  geometric(base, 1, base, slopes);
  geometric(2 * base, 2, num_heads - base, slopes);
  return slopes;
}

}  // namespace megatron

#include "megatron/kernels/attention.h"

#include <fmt/format.h>

#include <algorithm>

#include "megatron/kernels/cpu/workspace.h"
#include "megatron/kernels/dispatch.h"

namespace megatron::kernels {
namespace {

constexpr int64_t kMaxHeadSize = 256;

template <class View, class Whole>
View heads_view(Whole x, int64_t heads) {
  const int64_t width = x.size(2);
  if (heads <= 0 || width % heads != 0) {
    throw ShapeError(
        fmt::format("attention: {} does not divide into {} heads", x.shape.str(), heads));
  }
  const int64_t d = width / heads;
  return {x.data, x.dtype, x.size(0), x.size(1), heads, d, x.size(1) * width, width, 1, d, 0};
}

template <class View>
View shifted(View view, int64_t elements) {
  using Byte = std::conditional_t<std::is_same_v<View, HeadsView>, char, const char>;
  view.data = static_cast<Byte*>(view.data) + elements * size_of(view.dtype);
  return view;
}

template <class View, class Whole>
Qkv<View> split_qkv_view(Whole qkv, int64_t heads, int64_t groups) {
  const int64_t width = qkv.size(2);
  if (groups <= 0 || heads % groups != 0 || width % (heads + 2 * groups) != 0) {
    throw ShapeError(
        fmt::format("attention: qkv {} does not divide into {} query heads and {} groups of keys "
                    "and values",
                    qkv.shape.str(), heads, groups));
  }
  const int64_t d = width / (heads + 2 * groups);
  const int64_t per_group = heads / groups;
  const int64_t stride_group = (per_group + 2) * d;
  const View q{qkv.data, qkv.dtype,           qkv.size(0), qkv.size(1), heads,
               d,        qkv.size(1) * width, width,       per_group,   stride_group,
               d};
  const View k{qkv.data, qkv.dtype,           qkv.size(0), qkv.size(1), groups,
               d,        qkv.size(1) * width, width,       1,           stride_group,
               0};
  return {q, shifted(k, per_group * d), shifted(k, (per_group + 1) * d)};
}

template <class View, class Whole>
Kv<View> split_kv_view(Whole kv, int64_t heads) {
  View k = heads_view<View>(kv, heads);
  if (k.d % 2 != 0) {
    throw ShapeError(
        fmt::format("attention: kv {} does not divide into {} heads of keys and values",
                    kv.shape.str(), heads));
  }
  k.d /= 2;
  return {k, shifted(k, k.d)};
}

}  // namespace

HeadsView heads_of(TensorView x, int64_t heads) { return heads_view<HeadsView>(x, heads); }
ConstHeadsView heads_of(ConstView x, int64_t heads) { return heads_view<ConstHeadsView>(x, heads); }

Qkv<HeadsView> split_qkv(TensorView qkv, int64_t heads, int64_t groups) {
  return split_qkv_view<HeadsView>(qkv, heads, groups);
}
Qkv<ConstHeadsView> split_qkv(ConstView qkv, int64_t heads, int64_t groups) {
  return split_qkv_view<ConstHeadsView>(qkv, heads, groups);
}

Kv<HeadsView> split_kv(TensorView kv, int64_t heads) { return split_kv_view<HeadsView>(kv, heads); }
Kv<ConstHeadsView> split_kv(ConstView kv, int64_t heads) {
  return split_kv_view<ConstHeadsView>(kv, heads);
}

void expect_attention_inputs(const ConstHeadsView& q, const ConstHeadsView& k,
                             const ConstHeadsView& v, const AttentionSettings& settings) {
  const auto shape = [](const ConstHeadsView& x) { return Shape{x.s, x.b, x.heads, x.d}; };
  expect_shape(shape(k), {k.s, q.b, k.heads, q.d}, "attention: k");
  expect_shape(shape(v), shape(k), "attention: v");
  expect_dtype(k.dtype, q.dtype, "attention: k");
  expect_dtype(v.dtype, q.dtype, "attention: v");
  if (k.heads == 0 || q.heads % k.heads != 0) {
    throw ShapeError(fmt::format("attention: {} query heads do not divide evenly over {} key heads",
                                 q.heads, k.heads));
  }
  if (q.d > kMaxHeadSize) {
    throw Unsupported(
        fmt::format("attention: head size {} is above {}; lower --kv-channels", q.d, kMaxHeadSize));
  }
  invariant(settings.key_offset == 0 ||
                (settings.prefix_ends.data == nullptr && settings.relative_bias.data == nullptr),
            "attention: prefixes and relative biases count keys from position 0");
  invariant(!settings.is_causal || settings.key_offset <= settings.query_offset,
            "attention: causal queries begin at or behind the first key");
  invariant(settings.logit_cap == 0 ||
                (settings.alibi_slopes.data == nullptr && settings.relative_bias.data == nullptr),
            "attention: scores with a position bias have no cap");
  if (settings.sinks.data != nullptr) {
    expect_shape(settings.sinks.shape, {q.heads}, "attention: sinks");
    expect_dtype(settings.sinks.dtype, DType::kFloat32, "attention: sinks");
  }
  if (settings.document_starts.data != nullptr) {
    expect_shape(settings.document_starts.shape, {q.b, q.s}, "attention: document_starts");
    expect_dtype(settings.document_starts.dtype, DType::kInt32, "attention: document_starts");
  }
  if (settings.prefix_ends.data != nullptr) {
    expect_shape(settings.prefix_ends.shape, {q.b, q.s}, "attention: prefix_ends");
    expect_dtype(settings.prefix_ends.dtype, DType::kInt32, "attention: prefix_ends");
  }
  if (settings.key_padding_mask.data != nullptr) {
    expect_shape(settings.key_padding_mask.shape, {q.b, k.s}, "attention: key_padding_mask");
    expect_dtype(settings.key_padding_mask.dtype, DType::kBool, "attention: key_padding_mask");
  }
  if (settings.alibi_slopes.data != nullptr) {
    expect_shape(settings.alibi_slopes.shape, {q.heads}, "attention: alibi_slopes");
    expect_dtype(settings.alibi_slopes.dtype, DType::kFloat32, "attention: alibi_slopes");
  }
  if (settings.relative_bias.data != nullptr) {
    expect_shape(settings.relative_bias.shape, {q.heads, std::max<int64_t>(q.s + k.s - 1, 0)},
                 "attention: relative_bias");
    expect_dtype(settings.relative_bias.dtype, DType::kFloat32, "attention: relative_bias");
  }
}

namespace {

void expect_sinks(const ConstHeadsView& out, const ConstView& lse, const ConstView& sinks) {
  expect_shape(lse.shape, {out.b, out.heads, out.s}, "attention: lse");
  expect_shape(sinks.shape, {out.heads}, "attention: sinks");
  expect_dtype(sinks.dtype, DType::kFloat32, "attention: sinks");
}

// Expected of the GPU's backward pass, which only the GPU's library knows: cuDNN sums the gradients
// of queries in fp32, or keeps those of the scores to add them in one order.
int64_t expected_backward_workspace(const ConstHeadsView& q, const ConstHeadsView& k,
                                    const AttentionSettings& settings, Stream stream) {
  if (q.dtype == DType::kFloat32) return 0;
  const int64_t pairs = q.b * q.heads;
  const int64_t statistics = pairs * q.s * size_of(DType::kFloat32);
  const bool has_relative_bias = settings.relative_bias.data != nullptr;
  if (settings.dropout.is_active() || has_relative_bias || settings.logit_cap > 0) {
    return statistics + cuda::BackwardBytes(q.b, q.heads, q.s, k.s, q.d, has_relative_bias).total();
  }
  if (!stream.options.is_deterministic) {
    return statistics + pairs * q.s * q.d * size_of(DType::kFloat32);
  }
  const auto tiled = [](int64_t s) { return (s + 63) / 64 * 64; };  // cuDNN's tiles
  return statistics + pairs * tiled(q.s) * tiled(k.s) * size_of(DType::kBFloat16);
}

}  // namespace

int64_t attention_forward_workspace_bytes(HeadsView out, TensorView lse, ConstHeadsView q,
                                          ConstHeadsView k, ConstHeadsView v,
                                          const AttentionSettings& settings, Stream stream) {
  expect_attention_inputs(q, k, v, settings);
  if (!stream.has_queue()) return 0;
  if constexpr (kBuiltWithCuda) {
    return cuda::attention_forward_workspace_bytes(out, lse, q, k, v, settings, stream);
  }
  throw_built_without_cuda("attention");
}

int64_t attention_backward_workspace_bytes(HeadsView dq, HeadsView dk, HeadsView dv,
                                           ConstHeadsView dout, ConstHeadsView out, ConstView lse,
                                           ConstHeadsView q, ConstHeadsView k, ConstHeadsView v,
                                           const AttentionSettings& settings, Stream stream) {
  expect_attention_inputs(q, k, v, settings);
  if (stream.is_cpu()) return 0;
  if (stream.is_dry()) return expected_backward_workspace(q, k, settings, stream);
  if constexpr (kBuiltWithCuda) {
    return cuda::attention_backward_workspace_bytes(dq, dk, dv, dout, out, lse, q, k, v, settings,
                                                    stream);
  }
  throw_built_without_cuda("attention");
}

void attention_forward(HeadsView out, TensorView lse, ConstHeadsView q, ConstHeadsView k,
                       ConstHeadsView v, const AttentionSettings& settings, TensorView workspace,
                       Stream stream) {
  expect_attention_inputs(q, k, v, settings);
  if (stream.is_dry()) return;
  if (stream.is_cpu()) return cpu::attention_forward(out, lse, q, k, v, settings, stream);
  if constexpr (kBuiltWithCuda) {
    return cuda::attention_forward(out, lse, q, k, v, settings, workspace, stream);
  }
  throw_built_without_cuda("attention");
}

void attention_backward(HeadsView dq, HeadsView dk, HeadsView dv, TensorView drelative_bias,
                        ConstHeadsView dout, ConstHeadsView out, ConstView lse, ConstHeadsView q,
                        ConstHeadsView k, ConstHeadsView v, const AttentionSettings& settings,
                        TensorView workspace, Stream stream) {
  expect_attention_inputs(q, k, v, settings);
  if (drelative_bias.data != nullptr) {
    expect_shape(drelative_bias.shape, settings.relative_bias.shape, "attention: drelative_bias");
    expect_dtype(drelative_bias.dtype, DType::kFloat32, "attention: drelative_bias");
  }
  if (stream.is_dry()) {
    if (!stream.is_cpu()) return;
    const Shape of_keys = {k.s, q.b, q.heads, q.d};
    const cpu::Scratch scratch(cpu::attention_backward_workspace_bytes(of_keys, k.heads), stream);
    return;
  }
  if (stream.is_cpu()) {
    return cpu::attention_backward(dq, dk, dv, drelative_bias, dout, out, lse, q, k, v, settings,
                                   stream);
  }
  if constexpr (kBuiltWithCuda) {
    return cuda::attention_backward(dq, dk, dv, drelative_bias, dout, out, lse, q, k, v, settings,
                                    workspace, stream);
  }
  throw_built_without_cuda("attention");
}

void add_attention_sinks(HeadsView out, TensorView lse, ConstView sinks, Stream stream) {
  expect_sinks(out, lse, sinks);
  return dispatch<cpu::add_attention_sinks, cuda::add_attention_sinks>("add_attention_sinks", out,
                                                                       lse, sinks, stream);
}

void attention_sink_gradients(TensorView dsinks, ConstHeadsView dout, ConstHeadsView out,
                              ConstView lse, ConstView sinks, Stream stream) {
  expect_sinks(out, lse, sinks);
  expect_shape(dsinks.shape, sinks.shape, "attention: dsinks");
  expect_dtype(dsinks.dtype, DType::kFloat32, "attention: dsinks");
  return dispatch<cpu::attention_sink_gradients, cuda::attention_sink_gradients>(
      "attention_sink_gradients", dsinks, dout, out, lse, sinks, stream);
}

cuda::BackwardBytes::BackwardBytes(int64_t b, int64_t heads, int64_t sq, int64_t sk, int64_t d,
                                   bool has_relative_bias) {
  const auto whole = [](int64_t n, int64_t unit) { return (n + unit - 1) / unit; };
  // The first tile may begin before the first query.
  const int64_t tiles_of_head = whole(sq + kDropoutQueries - 1, kBackwardQueries);
  const int64_t tiles = b * heads * tiles_of_head;
  const int64_t channels = d <= 64 ? 64 : d <= 96 ? 96 : 128;
  sums = tiles * kBackwardQueries * channels * 4;
  statistics = b * heads * sq * 8;
  first_keys = b * tiles_of_head * 8;
  // The distances of a tile of keys to all queries.
  const int64_t distances = sq + kBackwardKeys - 1;
  bias_sums = has_relative_bias ? b * heads * whole(sk, kBackwardKeys) * distances * 4 : 0;
  counters = (1 + tiles) * 4;
}

}  // namespace megatron::kernels

#include "tests/kernels/cuda/attention_problem.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstring>
#include <utility>

#include "megatron/kernels/cuda/cudnn_attention.h"
#include "megatron/kernels/cuda/math_attention.h"

namespace megatron::attention_tests {
namespace {

using kernels::ConstHeadsView;
using kernels::HeadsView;

Tensor scratch(int64_t bytes, Stream stream) {
  return Tensor({std::max<int64_t>(bytes, 1)}, DType::kUInt8, stream);
}

}  // namespace

Tolerance on_tensor_cores(DType dtype) {
  Tolerance values = tolerance_of(dtype);
  values.absolute += 2 * values.relative;
  return values;
}

std::string text_of(const Problem& p) {
  return p.name + ": " + std::to_string(p.sq) + " queries, " + std::to_string(p.sk) + " keys, b " +
         std::to_string(p.b) + ", " + std::to_string(p.heads) + " heads on " +
         std::to_string(p.groups) + ", d " + std::to_string(p.d) +
         (p.is_causal ? " causal " : " ") + std::string(name_of(p.dtype));
}

Buffers buffers_of(const Problem& p, Stream stream) {
  const auto random_on_cpu = [&](int64_t s, int64_t width, uint64_t seed) {
    return random_normal({s, p.b, width * p.d}, {.seed = seed, .dtype = p.dtype});
  };
  const auto random = [&](int64_t s, int64_t width, uint64_t seed) {
    return random_on_cpu(s, width, seed).to(stream);
  };
  // Marks, so that an element that is not written is seen.
  const auto marked = [](const Tensor& x) {
    return full(x.shape(), 77.0f, x.dtype(), Stream{}).to(x.stream());
  };
  Buffers t;
  if (p.is_fused) {
    t.q = random(p.sq, p.heads + 2 * p.groups, 1);
  } else {
    t.q = random(p.sq, p.heads, 1);
    Tensor k = random_on_cpu(p.sk, p.groups, 2);
    if (p.nan_key >= 0) {  // all bits set are a NaN in every floating type
      const int64_t row_bytes = k.bytes() / p.sk;
      std::memset(static_cast<std::byte*>(k.view().data) + p.nan_key * row_bytes, 0xff,
                  static_cast<size_t>(row_bytes));
    }
    t.k = k.to(stream);
    t.v = random(p.sk, p.groups, 3);
    t.dk = marked(t.k);
    t.dv = marked(t.v);
  }
  t.dq = marked(t.q);
  t.dout = random(p.sq, p.heads, 4);
  t.out = marked(t.dout);
  if (p.relative_bias.defined()) t.dbias = marked(p.relative_bias.to(stream));
  t.lse = full({p.b, p.heads, p.sq}, 77.0f, DType::kFloat32, Stream{}).to(stream);
  return t;
}

OnDevice::OnDevice(const Problem& p, Stream stream) {
  const auto moved = [&](const Tensor& x) { return x.defined() ? x.to(stream) : Tensor(); };
  starts = moved(p.document_starts);
  ends = moved(p.prefix_ends);
  mask = moved(p.key_padding_mask);
  slopes = moved(p.alibi_slopes);
  relative_bias = moved(p.relative_bias);
  more_samples = moved(p.more_samples);
  sinks = moved(p.sinks);
  const auto view = [](const Tensor& x) { return x.defined() ? x.view() : ConstView{}; };
  settings = {.scale = p.scale != 0 ? p.scale : 1 / std::sqrt(static_cast<float>(p.d)),
              .is_causal = p.is_causal,
              .query_offset = p.query_offset,
              .key_offset = p.key_offset,
              .document_starts = view(starts),
              .prefix_ends = view(ends),
              .key_padding_mask = view(mask),
              .window = p.window,
              .logit_cap = p.logit_cap,
              .alibi_slopes = view(slopes),
              .relative_bias = view(relative_bias),
              .dropout = p.dropout,
              .dropout_length = p.dropout_length,
              .first_head = p.first_head,
              .sinks = view(sinks)};
  if (more_samples.defined()) {
    settings.dropout.more_samples = std::as_const(more_samples).view().as<int64_t>();
  }
}

Buffers run(const Problem& p, Stream stream, Path path) {
  stream.options.is_deterministic = p.is_deterministic;
  Buffers t = buffers_of(p, stream);
  const OnDevice on_device(p, stream);
  const kernels::AttentionSettings& settings = on_device.settings;
  const auto [q, k, v] = qkv_of<ConstHeadsView, const Tensor>(p, t.q, t.k, t.v);
  const auto [dq, dk, dv] = qkv_of<HeadsView, Tensor>(p, t.dq, t.dk, t.dv);
  const HeadsView out = queries_of<HeadsView>(p, t.out);
  const ConstHeadsView dout = queries_of<ConstHeadsView>(p, std::as_const(t.dout));
  const TensorView dbias = t.dbias.defined() ? t.dbias.view() : TensorView{};
  if (path == Path::kChosen) {
    Tensor forward = scratch(
        kernels::attention_forward_workspace_bytes(out, t.lse.view(), q, k, v, settings, stream),
        stream);
    kernels::attention_forward(out, t.lse.view(), q, k, v, settings, forward.view(), stream);
    Tensor backward = scratch(kernels::attention_backward_workspace_bytes(
                                  dq, dk, dv, dout, out, t.lse.view(), q, k, v, settings, stream),
                              stream);
    kernels::attention_backward(dq, dk, dv, dbias, dout, out, t.lse.view(), q, k, v, settings,
                                backward.view(), stream);
  } else {
    Tensor delta = scratch(kernels::cuda::math_attention_delta_bytes(q), stream);
    kernels::cuda::math_attention_forward(out, t.lse.view(), q, k, v, settings, stream);
    kernels::cuda::math_attention_backward(dq, dk, dv, dbias, dout, out, t.lse.view(), q, k, v,
                                           settings, static_cast<float*>(delta.view().data),
                                           stream);
  }
  if (p.sinks.defined()) {
    t.dsinks = empty_like(on_device.sinks);
    kernels::attention_sink_gradients(t.dsinks.view(), dout, out, std::as_const(t.lse).view(),
                                      settings.sinks, stream);
  }
  for (Tensor* x : {&t.out, &t.lse, &t.dq, &t.dk, &t.dv, &t.dbias, &t.dsinks}) {
    if (x->defined()) *x = x->to(Stream{});
  }
  return t;
}

void expect_results(const Problem& p, const Buffers& got, const Buffers& want,
                    const std::string& path, int rounded) {
  // Sums over keys, queries and channels whose terms cancel: bounded by the size of the terms.
  const auto terms = std::max({p.sq * p.heads / p.groups, p.sk, p.d, int64_t{1}});
  Tolerance sums = tolerance_of(DType::kFloat32).for_terms(terms);
  sums.absolute = 2e-6 * std::sqrt(static_cast<double>(terms));
  // A score is rounded once more when its bias is added.
  if (p.relative_bias.defined()) sums = sums.for_terms(2);
  Tolerance values = sums;
  Tolerance logs = sums;
  if (p.dtype != DType::kFloat32) {
    values = on_tensor_cores(p.dtype);
    values.absolute *= rounded;
    logs = {.relative = 1e-4, .absolute = 1e-4};
  }
  const std::string what = text_of(p) + " by " + path + ": ";
  expect_close(got.lse, want.lse, logs, what + "lse");
  expect_close(got.out, want.out, values, what + "out");
  expect_close(got.dq, want.dq, values, what + (p.is_fused ? "dqkv" : "dq"));
  if (want.dbias.defined()) {
    // Over samples and the pairs of a distance, too.
    const int64_t pairs = p.b * std::min(p.sq, p.sk);
    const Tolerance of_bias = (p.dtype == DType::kFloat32 ? sums : values).for_terms(pairs);
    expect_close(got.dbias, want.dbias, of_bias, what + "drelative_bias");
  }
  if (want.dsinks.defined()) {
    const Tolerance of_sinks = p.dtype == DType::kFloat32 ? sums : values;
    expect_close(got.dsinks, want.dsinks, of_sinks.for_terms(p.b * p.sq), what + "dsinks");
  }
  if (p.is_fused) return;
  expect_close(got.dk, want.dk, values, what + "dk");
  expect_close(got.dv, want.dv, values, what + "dv");
}

void AttentionCudaTest::check(const Problem& p) const {
  const Buffers want = run(p, Stream{}, Path::kChosen);
  expect_results(p, run(p, stream(), Path::kMath), want, "own kernels");
  const bool is_cudnn = is_served_by_cudnn(p);
  expect_results(p, run(p, stream(), Path::kChosen), want, is_cudnn ? "cuDNN" : "entry point");
}

bool AttentionCudaTest::is_served_by_cudnn(const Problem& p) const {
  Buffers t = buffers_of(p, stream());
  const OnDevice on_device(p, stream());
  const auto [q, k, v] = qkv_of<ConstHeadsView, const Tensor>(p, t.q, t.k, t.v);
  const auto [dq, dk, dv] = qkv_of<HeadsView, Tensor>(p, t.dq, t.dk, t.dv);
  const HeadsView out = queries_of<HeadsView>(p, t.out);
  const ConstHeadsView dout = queries_of<ConstHeadsView>(p, std::as_const(t.dout));
  return kernels::cuda::cudnn_forward_workspace_bytes(out, t.lse.view(), q, k, v,
                                                      on_device.settings, stream()) &&
         kernels::cuda::cudnn_backward_workspace_bytes(dq, dk, dv, dout, out, t.lse.view(), q, k, v,
                                                       on_device.settings, stream());
}

void AttentionCudaTest::check_cudnn(Problem p) const {
  for (const DType dtype : {DType::kBFloat16, DType::kFloat16}) {
    p.dtype = dtype;
    EXPECT_TRUE(is_served_by_cudnn(p)) << text_of(p) << ": see the warning above for why not";
    check(p);
  }
}

Problem self_attention(const std::string& name, int64_t s, int64_t b, int64_t heads, int64_t groups,
                       int64_t d, bool is_causal) {
  return {.name = name,
          .sq = s,
          .sk = s,
          .b = b,
          .heads = heads,
          .groups = groups,
          .d = d,
          .is_causal = is_causal};
}

Tensor prefixes(const std::vector<int32_t>& of_samples, int64_t s) {
  std::vector<int32_t> ends;
  for (const int32_t end : of_samples) {
    for (int32_t i = 0; i < s; ++i) ends.push_back(i < end ? end : 0);
  }
  return tensor_of(ends, {static_cast<int64_t>(of_samples.size()), s});
}

}  // namespace megatron::attention_tests

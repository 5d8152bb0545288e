#include <algorithm>
#include <cstdio>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "megatron/device/stream.h"
#include "megatron/device/work_graph.h"
#include "megatron/kernels/attention.h"
#include "megatron/kernels/bias_activation.h"
#include "megatron/kernels/cross_entropy.h"
#include "megatron/kernels/dropout.h"
#include "megatron/kernels/fp8_rows.h"
#include "megatron/kernels/matmul.h"
#include "megatron/kernels/norm.h"
#include "megatron/kernels/paged_attention.h"
#include "megatron/kernels/residual_norm.h"
#include "megatron/tensor/tensor.h"

// TB/s of the kernels that are bound by GPU memory, in bf16: the bytes that must be read and
// written, divided by the time of one call. Random input, 16384 tokens. If all tensors of a row fit
// the 60 MB L2 cache, the result may exceed the memory's rate. For attention TFLOP/s; causal
// attention counts half of all pairs of positions. Products of few rows and the norm after them, by
// the number of parts of their depth: microseconds of both. An argument names the only part to run:
// rows, attention, pages, parts or loss.
namespace megatron {
namespace {

double us_of(Stream stream, const std::function<void()>& call) {
  constexpr int kCalls = 50;
  for (int i = 0; i < 5; ++i) call();
  Event begin(stream.device);
  Event end(stream.device);
  begin.record(stream);
  for (int i = 0; i < kCalls; ++i) call();
  end.record(stream);
  end.synchronize();
  return end.ms_since(begin) * 1000 / kCalls;
}

void measure(const char* what, int64_t cols, int64_t bytes, Stream stream,
             const std::function<void()>& call) {
  const double us = us_of(stream, call);
  std::printf("%-28s %6lld  %8.1f us  %5.2f TB/s\n", what, static_cast<long long>(cols), us,
              static_cast<double>(bytes) / us / 1e6);
}

Tensor some(const Shape& shape, float value, Stream stream) {
  Tensor x = full(shape, 0, DType::kBFloat16, stream);
  // y = 0 + dropout(x + bias): ones and zeros in a random pattern, times `value`.
  const Tensor bias = full({shape[-1]}, value, DType::kBFloat16, stream);
  const Shape rows{x.rows().size(0), 1, shape[-1]};
  Tensor y = x.reshape(rows);
  kernels::bias_dropout_add_forward(y.view(), y.view(), bias.view(), ConstView{},
                                    {.key = 1, .probability = 0.5f}, stream);
  return x;
}

void norms(int64_t rows, int64_t cols, Stream s) {
  const Tensor x = some({rows, cols}, 1, s);
  const Tensor dy = some({rows, cols}, -1, s);
  const Tensor w = some({cols}, 1, s);
  Tensor y = empty_like(x);
  Tensor mean({rows}, DType::kFloat32, s);
  Tensor rstd({rows}, DType::kFloat32, s);
  Tensor dw({cols}, DType::kFloat32, s);
  Tensor db({cols}, DType::kFloat32, s);
  Tensor workspace({kernels::norm_backward_workspace_bytes(x.shape(), s)}, DType::kUInt8, s);
  const int64_t n = x.bytes();
  measure("layer_norm forward", cols, 2 * n, s, [&] {
    kernels::layer_norm_forward(y.view(), mean.view(), rstd.view(), x.view(), w.view(), w.view(), 0,
                                1e-5f, s);
  });
  measure("rms_norm forward", cols, 2 * n, s, [&] {
    kernels::rms_norm_forward(y.view(), rstd.view(), x.view(), w.view(), 0, 1e-5f, s);
  });
  measure("layer_norm backward", cols, 3 * n, s, [&] {
    kernels::layer_norm_backward(y.view(), dw.view(), db.view(), dy.view(), x.view(), mean.view(),
                                 rstd.view(), w.view(), 0, 1, workspace.view(), s);
  });
}

// A residual stream, a branch that is added to it, and the norm of the sum.
void residual_norms(int64_t rows, int64_t cols, Stream s) {
  const Shape shape = {rows, 1, cols};
  const Tensor branch = some(shape, 1, s);
  const Tensor residual = some(shape, -1, s);
  const Tensor w = some({cols}, 1, s);
  Tensor x = empty_like(branch);
  Tensor y = empty_like(branch);
  Tensor dx = empty_like(branch);
  Tensor dbranch = empty_like(branch);
  Tensor mean({rows}, DType::kFloat32, s);
  Tensor rstd({rows}, DType::kFloat32, s);
  Tensor sums({3, cols}, DType::kFloat32, s);
  Tensor workspace({kernels::residual_norm_backward_workspace_bytes(shape, s)}, DType::kUInt8, s);
  const auto sum = [&](int64_t i) { return sums.slice(i, 1).reshape({cols}).view(); };
  const kernels::NormParameters norm{w.view(), w.view(), 0, 1e-5f};
  const int64_t n = x.bytes();
  for (const float probability : {0.0f, 0.1f}) {
    const DropoutKey key{.key = 1, .probability = probability};
    const std::string with = probability > 0 ? ", dropout" : "";
    measure(("residual norm forward" + with).c_str(), cols, 4 * n, s, [&] {
      kernels::residual_norm_forward(x.view(), y.view(), mean.view(), rstd.view(), branch.view(),
                                     w.view(), residual.view(), norm, key, s);
    });
    measure(("residual norm backward" + with).c_str(), cols, (probability > 0 ? 5 : 4) * n, s, [&] {
      kernels::residual_norm_backward({.dx = dx.view(),
                                       .dbranch = probability > 0 ? dbranch.view() : TensorView{},
                                       .dbias = sum(0),
                                       .dweight = sum(1),
                                       .dnorm_bias = sum(2),
                                       .bias_beta = 1,
                                       .norm_beta = 1},
                                      residual.view(), branch.view(), x.view(), mean.view(),
                                      rstd.view(), norm, key, workspace.view(), s);
    });
  }
}

// Causal attention by cuDNN, and by own kernels for dropout and documents; attention to every key
// by cuDNN, and by own kernels for padding. The same with sinks and with a window of 1024 tokens,
// and with a cap of scores by own kernels.
void attention(int64_t samples, int64_t length, int64_t heads, int64_t d, Stream s) {
  const Tensor qkv = some({length, samples, 3 * heads * d}, 1, s);
  const Tensor dout = some({length, samples, heads * d}, 1, s);
  Tensor out = empty_like(dout);
  Tensor dqkv = empty_like(qkv);
  Tensor lse({samples, heads, length}, DType::kFloat32, s);
  const Tensor starts = zeros({samples, length}, DType::kInt32, s);
  const auto in = kernels::split_qkv(qkv.view(), heads, heads);
  const auto grad = kernels::split_qkv(dqkv.view(), heads, heads);
  const kernels::HeadsView y = kernels::heads_of(out.view(), heads);
  const kernels::ConstHeadsView dy = kernels::heads_of(dout.view(), heads);
  const kernels::AttentionSettings plain{.scale = 0.1f, .is_causal = true};
  kernels::AttentionSettings dropping = plain;
  dropping.dropout = {.key = 1, .probability = 0.1f};
  kernels::AttentionSettings documents = plain;
  documents.document_starts = starts.view();
  const Tensor hidden = zeros({samples, length}, DType::kBool, s);
  kernels::AttentionSettings whole = plain;
  whole.is_causal = false;
  kernels::AttentionSettings padded = whole;
  padded.key_padding_mask = hidden.view();
  kernels::AttentionSettings padded_dropping = padded;
  padded_dropping.dropout = dropping.dropout;
  constexpr int64_t kWindow = 1024;
  kernels::AttentionSettings window = plain;
  window.window = kWindow;
  kernels::AttentionSettings window_of_documents = documents;
  window_of_documents.window = kWindow;
  const Tensor scores = zeros({heads}, DType::kFloat32, s);
  kernels::AttentionSettings sinks = plain;
  sinks.sinks = scores.view();
  kernels::AttentionSettings cap = plain;
  cap.logit_cap = 50;
  const double flops = 2.0 * static_cast<double>(samples * heads * d) *
                       static_cast<double>(length) * static_cast<double>(length);
  const auto report = [&](const std::string& what, double count, double us) {
    std::printf("%-38s %5lld %4lld  %8.1f us  %5.0f TFLOP/s\n", what.c_str(),
                static_cast<long long>(length), static_cast<long long>(d), us,
                count * flops / us / 1e6);
  };
  for (const auto& [name, settings] :
       {std::pair("attention", plain), std::pair("attention, dropout", dropping),
        std::pair("attention, documents", documents), std::pair("attention, every key", whole),
        std::pair("attention, padding", padded),
        std::pair("attention, padding, dropout", padded_dropping),
        std::pair("attention, window", window),
        std::pair("attention, window, documents", window_of_documents),
        std::pair("attention, sinks", sinks), std::pair("attention, cap", cap)}) {
    Tensor forward({1 + kernels::attention_forward_workspace_bytes(y, lse.view(), in.q, in.k, in.v,
                                                                   settings, s)},
                   DType::kUInt8, s);
    Tensor backward(
        {1 + kernels::attention_backward_workspace_bytes(grad.q, grad.k, grad.v, dy, y, lse.view(),
                                                         in.q, in.k, in.v, settings, s)},
        DType::kUInt8, s);
    const auto& chosen = settings;
    const double part =
        static_cast<double>(std::min(settings.window, length)) / static_cast<double>(length);
    const double seen = settings.window > 0 ? part * (2 - part) : 1;
    const double pairs = settings.is_causal ? seen : 2;
    report(name, pairs, us_of(s, [&] {
             kernels::attention_forward(y, lse.view(), in.q, in.k, in.v, chosen, forward.view(), s);
           }));
    report(std::string(name) + " backward", 2.5 * pairs, us_of(s, [&] {
             kernels::attention_backward(grad.q, grad.k, grad.v, {}, dy, y, lse.view(), in.q, in.k,
                                         in.v, chosen, backward.view(), s);
           }));
  }
}

// Steps of generation: `rows` texts of `length` tokens, in pages of 16 that lie in mixed order. The
// calls go round several stores, so that no call finds its keys in the cache.
void pages(int64_t rows, int64_t length, int64_t heads, int64_t groups, int64_t d, DType dtype,
           Stream s) {
  constexpr int64_t kPageTokens = 16;
  const int64_t most = (length + kPageTokens - 1) / kPageTokens;
  const Shape shape = {rows * most, kPageTokens, groups, d};
  const bool is_fp8 = is_float8(dtype);
  const int64_t bytes = 2 * rows * length * groups * (is_fp8 ? d + 4 : d * 2);
  std::vector<Tensor> keys, values;
  const auto rounded = [&](const Tensor& x) {
    if (!is_fp8) return x;
    Tensor numbers(shape, dtype, s);
    Tensor scales({x.numel() / d}, DType::kFloat32, s);
    kernels::fp8_quantize_rows(numbers.reshape({scales.numel(), d}).view(), scales.view(),
                               x.reshape({scales.numel(), d}).view(), s);
    return numbers;
  };
  for (int64_t i = 0; i < 1 + (int64_t{1} << 28) / bytes; ++i) {
    keys.push_back(rounded(some(shape, 1, s)));
    values.push_back(rounded(some(shape, -1, s)));
  }
  Tensor scales;
  if (is_fp8) scales = full({rows * most, kPageTokens, groups, 2}, 0.01f, DType::kFloat32, s);
  std::vector<int32_t> pages;
  for (int64_t i = 0; i < rows * most; ++i) {
    pages.push_back(static_cast<int32_t>(i * 7919 % (rows * most)));
  }
  std::vector<int32_t> queries;
  for (int32_t i = 0; i < rows; ++i) queries.push_back(i);
  const Tensor table = tensor_of(pages, {rows, most}).to(s);
  const std::vector<int32_t> equal(static_cast<size_t>(rows), static_cast<int32_t>(length));
  const Tensor lengths = tensor_of(equal, {rows}).to(s);
  const Tensor all = tensor_of(queries, {rows}).to(s);
  const Tensor qkv = some({rows, 1, (heads + 2 * groups) * d}, 1, s);
  Tensor out({rows, 1, heads * d}, DType::kBFloat16, s);
  Tensor workspace = zeros({kernels::paged_attention_workspace_bytes(rows, heads, d, length, s)},
                           DType::kUInt8, s);
  const auto in = kernels::split_qkv(qkv.view(), heads, groups);
  size_t next = 0;
  const std::string what = std::to_string(rows) + " texts of " + std::to_string(length) + ", " +
                           std::to_string(heads) + "/" + std::to_string(groups) +
                           (is_fp8 ? " FP8" : "");
  measure(what.c_str(), d, bytes, s, [&] {
    const size_t i = next++ % keys.size();
    kernels::paged_attention(
        kernels::heads_of(out.view(), heads),
        {keys[i].view(), values[i].view(), is_fp8 ? scales.view() : TensorView{}}, in.q, in.k, in.v,
        {table.view(), lengths.view(), all.view(), length}, {.scale = 0.1f}, workspace.view(), s);
  });
}

// A product of few rows with weights that are not in the cache, and the norm that adds it to a
// residual stream, in a graph: as one product and in parts. The star is at the program's choice.
void products_in_parts(int64_t rows, int64_t hidden, int64_t depth, Stream s) {
  constexpr int64_t kBytes = int64_t{512} << 20;
  const int64_t count = std::max<int64_t>(2, kBytes / (2 * hidden * depth));
  const Tensor weights = some({count, hidden, depth}, 1, s);
  const Tensor a = some({rows, depth}, 1, s);
  const Tensor w = some({hidden}, 1, s);
  const Shape shape = {rows, 1, hidden};
  Tensor x = some(shape, 1, s);
  Tensor y = empty_like(x);
  Tensor mean({rows}, DType::kFloat32, s);
  Tensor rstd({rows}, DType::kFloat32, s);
  std::printf("%2lld rows, %5lld x %5lld, us:", static_cast<long long>(rows),
              static_cast<long long>(hidden), static_cast<long long>(depth));
  const int64_t chosen = kernels::num_k_splits(rows, hidden, depth, DType::kBFloat16, s);
  for (const int64_t parts : {1, 2, 3, 4, 5, 6, 7, 8}) {
    if (depth % (parts * 64) != 0) continue;
    Tensor whole(shape, DType::kBFloat16, s);
    Tensor in_parts({parts, rows, 1, hidden}, DType::kFloat32, s);
    const auto layers = [&] {
      for (int64_t i = 0; i < count; ++i) {
        const ConstView weight = weights.slice(i, 1).reshape({hidden, depth}).view();
        if (parts == 1) {
          kernels::matmul(whole.rows(), a.view(), kernels::Transpose::kNo, weight,
                          kernels::Transpose::kYes, ConstView{}, 0, s);
        } else {
          kernels::matmul_split_k(in_parts.reshape({parts, rows, hidden}).view(), a.view(), weight,
                                  s);
        }
        kernels::residual_norm_forward(x.view(), y.view(), mean.view(), rstd.view(),
                                       parts == 1 ? whole.view() : in_parts.view(), w.view(),
                                       x.view(), {w.view(), w.view(), 0, 1e-5f}, {}, s);
      }
    };
    layers();
    WorkGraph graph(s, layers);
    const double us = us_of(s, [&] { graph.launch(); }) / static_cast<double>(count);
    std::printf("  %lld%s: %.2f", static_cast<long long>(parts), parts == chosen ? "*" : "", us);
  }
  std::printf("\n");
}

void elementwise(int64_t rows, int64_t cols, Stream s) {
  const Tensor x = some({rows, 1, cols}, 1, s);
  const Tensor dy = some({rows, 1, cols}, -1, s);
  const Tensor bias = some({cols}, 1, s);
  Tensor y = empty_like(x);
  Tensor dbias({cols}, DType::kFloat32, s);
  const Shape matrix = std::as_const(x).rows().shape;
  Tensor workspace({kernels::bias_activation_backward_workspace_bytes(matrix, s)}, DType::kUInt8,
                   s);
  const int64_t n = x.bytes();
  for (const auto& [name, activation] : {std::pair("gelu tanh", Activation::kGeluTanh),
                                         std::pair("gelu erf", Activation::kGeluErf)}) {
    measure((std::string(name) + " forward").c_str(), cols, 2 * n, s, [&] {
      kernels::bias_activation_forward(y.rows(), x.rows(), bias.view(), activation, s);
    });
    measure((std::string(name) + " backward").c_str(), cols, 3 * n, s, [&] {
      kernels::bias_activation_backward(y.rows(), dbias.view(), dy.rows(), x.rows(), bias.view(),
                                        activation, 1, workspace.view(), s);
    });
  }
  measure("bias_dropout_add", cols, 3 * n, s, [&] {
    kernels::bias_dropout_add_forward(y.view(), x.view(), bias.view(), dy.view(),
                                      {.key = 1, .probability = 0.1f}, s);
  });
}

void losses(int64_t rows, int64_t cols, Stream s) {
  Tensor logits = some({rows, 1, cols}, 1, s);
  const Tensor labels = zeros({1, rows}, DType::kInt64, s);
  Tensor statistics({rows, 1, kernels::kNumCrossEntropyStatistics}, DType::kFloat32, s);
  Tensor lse = full({rows, 1}, 11, DType::kFloat32, s);
  measure("cross_entropy statistics", cols, logits.bytes(), s, [&] {
    kernels::cross_entropy_statistics(statistics.view(), logits.view(), labels.view(), 0,
                                      logits.size(-1), s);
  });
  measure("cross_entropy backward", cols, 2 * logits.bytes(), s, [&] {
    kernels::cross_entropy_backward(logits.view(), lse.view(), logits.view(), lse.view(),
                                    labels.view(), 0, 0, cols, s);
  });
}

}  // namespace
}  // namespace megatron

int main(int argc, char** argv) {
  using namespace megatron;
  const Device gpu{DeviceType::kCuda, 0};
  use_device(gpu);
  const OwnedStream queue(gpu);
  const Stream s = queue.get();
  const std::string only = argc > 1 ? argv[1] : "";
  const auto wants = [&](const char* part) { return only.empty() || only == part; };
  constexpr int64_t kTokens = 16384;
  if (wants("rows")) {
    for (const int64_t cols : {1024, 2048, 4096, 8192}) {
      norms(kTokens, cols, s);
      residual_norms(kTokens, cols, s);
      elementwise(kTokens, cols, s);
    }
  }
  if (wants("attention")) {
    attention(16, 1024, 16, 64, s);
    attention(8, 2048, 16, 128, s);
    attention(32, 512, 16, 64, s);
    attention(1, 32768, 16, 128, s);
  }
  if (wants("pages")) {
    for (const DType dtype : {DType::kBFloat16, DType::kFloat8E4M3}) {
      pages(256, 1200, 32, 8, 128, dtype, s);
      pages(128, 1000, 32, 8, 128, dtype, s);
      pages(8, 4000, 32, 8, 128, dtype, s);
      pages(32, 200, 25, 25, 64, dtype, s);
    }
  }
  if (wants("parts")) {
    for (const int64_t rows : {2, 8, 32, 64}) {
      products_in_parts(rows, 1024, 1024, s);
      products_in_parts(rows, 1024, 4096, s);
      products_in_parts(rows, 1600, 1600, s);
      products_in_parts(rows, 1600, 6400, s);
      products_in_parts(rows, 2048, 2048, s);
      products_in_parts(rows, 2048, 8192, s);
      products_in_parts(rows, 4096, 4096, s);
      products_in_parts(rows, 4096, 14'336, s);
    }
  }
  if (wants("loss")) losses(kTokens, 50304, s);
}

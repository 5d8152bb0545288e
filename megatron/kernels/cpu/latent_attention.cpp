#include "megatron/kernels/latent_attention.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "megatron/core/error.h"
#include "megatron/core/parallel_for.h"
#include "megatron/kernels/cpu/paged_rows.h"
#include "megatron/kernels/cpu/simd.h"
#include "megatron/kernels/cpu/vector_math.h"
#include "megatron/kernels/cpu/workspace.h"

namespace megatron::kernels::cpu {
namespace {

// A task has this many heads of a row, which read a latent together, and so many tokens at a time.
constexpr int64_t kLatentHeads = 4;
constexpr int64_t kLatentTokens = 16;

int64_t whole_vectors(int64_t channels) {
  return (channels + simd::kLanes - 1) / simd::kLanes * simd::kLanes;
}

// The scratch memory of one thread, in fp32. A row is a latent, then the rotated key, each with
// zeros up to whole vectors.
struct LatentScratch {
  int64_t latent, width;
  float* queries;               // [kLatentHeads, width], times the scale
  float* tokens;                // [kLatentTokens, width]
  float* sums;                  // [kLatentHeads, latent]: weighted latents
  float largest[kLatentHeads];  // score so far
  float totals[kLatentHeads];   // of the weights e^(score - largest)
  float scores[kLatentTokens];

  static int64_t floats(int64_t c, int64_t r) {
    const int64_t width = whole_vectors(c) + whole_vectors(r);
    return (kLatentHeads + kLatentTokens) * width + kLatentHeads * whole_vectors(c);
  }
  LatentScratch(float* memory, int64_t c, int64_t r)
      : latent(whole_vectors(c)),
        width(latent + whole_vectors(r)),
        queries(memory),
        tokens(queries + kLatentHeads * width),
        sums(tokens + kLatentTokens * width) {
    std::fill_n(memory, floats(c, r), 0.0f);
  }
};

float latent_score(const float* query, const float* token, int64_t width) {
  simd::Vec sum{};
  for (int64_t c = 0; c < width; c += simd::kLanes) {
    sum = simd::fma(simd::load(query + c), simd::load(token + c), sum);
  }
  float total = 0;
  for (int64_t i = 0; i < simd::kLanes; ++i) total += sum[i];
  return total;
}

void scale_latents(float* sums, float factor, int64_t latent) {
  const simd::Vec by = simd::broadcast(factor);
  for (int64_t c = 0; c < latent; c += simd::kLanes) {
    simd::store(sums + c, simd::load(sums + c) * by);
  }
}

// Adds `count` tokens to the sums of a head: softmax online (Milakov and Gimelshein 2018,
// arXiv:1805.02867).
void add_latent_tokens(LatentScratch& s, int64_t head, int64_t count, float cap) {
  const float* const query = s.queries + head * s.width;
  float* const sums = s.sums + head * s.latent;
  float largest = s.largest[head];
  for (int64_t j = 0; j < count; ++j) {
    const float product = latent_score(query, s.tokens + j * s.width, s.width);
    s.scores[j] = cap == 0 ? product : cap * fast_tanh(product / cap);
    largest = std::max(largest, s.scores[j]);
  }
  if (largest > s.largest[head]) {
    const float factor = fast_exp(s.largest[head] - largest);
    scale_latents(sums, factor, s.latent);
    s.totals[head] *= factor;
    s.largest[head] = largest;
  }
  for (int64_t j = 0; j < count; ++j) {
    const float weight = std::isnan(s.scores[j]) ? s.scores[j] : fast_exp(s.scores[j] - largest);
    s.totals[head] += weight;
    const simd::Vec factor = simd::broadcast(weight);
    const float* const token = s.tokens + j * s.width;
    for (int64_t c = 0; c < s.latent; c += simd::kLanes) {
      simd::store(sums + c, simd::fma(factor, simd::load(token + c), simd::load(sums + c)));
    }
  }
}

// The channels of a head of a token.
template <class T>
const T* channels_at(const ConstHeadsView& x, int64_t token, int64_t head) {
  return static_cast<const T*>(x.data) + token * x.stride_s + x.offset(0, head);
}

struct LatentProblem {
  HeadsView out;
  const KeyValuePages& pages;
  ConstHeadsView q_latent, q_rotated;
  const PageTable& table;
  const PagedSettings& settings;

  // The heads [first, first + count) of a row.
  template <class T, class S>
  void attend(LatentScratch& s, int64_t row, int64_t first, int64_t count) const {
    const int64_t c = q_latent.d, r = q_rotated.d;
    const int64_t token = table.queries.as<int32_t>()[row];
    for (int64_t h = 0; h < count; ++h) {
      float* const query = s.queries + h * s.width;
      widen(query, channels_at<T>(q_latent, token, first + h), 1, c);
      widen(query + s.latent, channels_at<T>(q_rotated, token, first + h), 1, r);
      for (int64_t i = 0; i < s.width; ++i) query[i] *= settings.scale;
      std::fill_n(s.sums + h * s.latent, s.latent, 0.0f);
      s.largest[h] = -std::numeric_limits<float>::infinity();
      s.totals[h] = 0;
    }
    const int64_t length = table.lengths.as<int32_t>()[row];
    const auto* const row_pages = table.pages.as<int32_t>() + row * table.pages.size(1);
    const PagedRows<S> keys(pages, kKey, row_pages, 0);
    const PagedRows<S> latents(pages, kValue, row_pages, 0);
    const int64_t begin = settings.window == 0 ? 0 : std::max<int64_t>(0, length - settings.window);
    for (int64_t at = begin; at < length; at += kLatentTokens) {
      const int64_t end = std::min(length, at + kLatentTokens);
      latents.each(at, end, [&](int64_t j, const S* elements, float scale) {
        widen(s.tokens + (j - at) * s.width, elements, scale, c);
      });
      keys.each(at, end, [&](int64_t j, const S* elements, float scale) {
        widen(s.tokens + (j - at) * s.width + s.latent, elements, scale, r);
      });
      for (int64_t h = 0; h < count; ++h) add_latent_tokens(s, h, end - at, settings.logit_cap);
    }
    for (int64_t h = 0; h < count; ++h) {
      float total = s.totals[h];
      if (settings.sinks.data != nullptr) {
        const float sink = settings.sinks.as<float>()[first + h];
        const float largest = std::max(sink, s.largest[h]);
        const float factor = fast_exp(s.largest[h] - largest);
        scale_latents(s.sums + h * s.latent, factor, s.latent);
        total = total * factor + fast_exp(sink - largest);
      }
      T* const to = static_cast<T*>(out.data) + token * out.stride_s + out.offset(0, first + h);
      for (int64_t i = 0; i < c; ++i) to[i] = T(s.sums[h * s.latent + i] / total);
    }
  }
};

// Rows of a head's matrix in 8 bits, times their scales.
template <class T, class W>
void widen_rows(T* to, const W* rows, const float* scales, int64_t count, int64_t columns) {
  for (int64_t row = 0; row < count; ++row) {
    for (int64_t c = 0; c < columns; ++c) {
      to[row * columns + c] = T(static_cast<float>(rows[row * columns + c]) * scales[row]);
    }
  }
}

}  // namespace

void latent_attention(HeadsView out, const KeyValuePages& pages, ConstHeadsView q_latent,
                      ConstHeadsView q_rotated, const PageTable& table,
                      const PagedSettings& settings, Stream stream) {
  // Multiply-adds below which a second thread costs more than it saves.
  constexpr int64_t kMinLatentWork = 100'000;
  const int64_t rows = table.lengths.numel();
  const auto* const lengths = table.lengths.as<int32_t>();
  const int64_t longest = rows == 0 ? 0 : *std::max_element(lengths, lengths + rows);
  const int64_t blocks = (out.heads + kLatentHeads - 1) / kLatentHeads;
  const int64_t tasks = rows * blocks;
  const int64_t c = q_latent.d, r = q_rotated.d;
  const int64_t useful = 1 + rows * out.heads * longest * (2 * c + r) / kMinLatentWork;
  const int64_t workers = std::min({tasks, useful, static_cast<int64_t>(num_threads())});
  const int64_t floats = LatentScratch::floats(c, r);
  const Scratch scratch(workers * floats * 4, stream);
  const LatentProblem problem{out, pages, q_latent, q_rotated, table, settings};
  dispatch_pages(q_latent.dtype, pages, "latent_attention", [&]<class T, class S>() {
    parallel_for(workers, 1, [&](int64_t begin, int64_t end) {
      for (int64_t worker = begin; worker < end; ++worker) {
        LatentScratch own(scratch.as<float>() + worker * floats, c, r);
        for (int64_t task = worker; task < tasks; task += workers) {
          const int64_t row = task / blocks;
          const int64_t first = task % blocks * kLatentHeads;
          if (lengths[row] == 0) continue;
          problem.attend<T, S>(own, row, first, std::min(kLatentHeads, out.heads - first));
        }
      }
    });
  });
}

void multiply_heads(TensorView y, ConstView x, ConstView w, ConstView scales, int64_t first_row,
                    Transpose transpose_w, Stream stream) {
  const int64_t tokens = x.size(1);
  const int64_t rows = transpose_w == Transpose::kYes ? y.size(2) : x.size(2);
  const int64_t columns = w.size(2);
  if (y.numel() == 0) return;
  const Scratch scratch(scales.data == nullptr ? 0 : rows * columns * size_of(x.dtype), stream);
  for (int64_t head = 0; head < x.size(0); ++head) {
    const int64_t row = head * w.size(1) + first_row;
    const auto* data = static_cast<const char*>(w.data) + row * columns * size_of(w.dtype);
    if (scales.data != nullptr) {
      dispatch_floating(x.dtype, "multiply_heads", [&]<class T>() {
        T* const to = scratch.as<T>();
        const float* const of_rows = scales.as<float>() + row;
        if (w.dtype == DType::kInt8) {
          widen_rows(to, reinterpret_cast<const int8_t*>(data), of_rows, rows, columns);
        } else {
          widen_rows(to, reinterpret_cast<const Float8E4M3*>(data), of_rows, rows, columns);
        }
      });
      data = scratch.as<char>();
    }
    const int64_t x_bytes = head * tokens * x.size(2) * size_of(x.dtype);
    const int64_t y_bytes = head * tokens * y.size(2) * size_of(y.dtype);
    cpu::matmul({static_cast<char*>(y.data) + y_bytes, {tokens, y.size(2)}, y.dtype},
                {static_cast<const char*>(x.data) + x_bytes, {tokens, x.size(2)}, x.dtype},
                Transpose::kNo, {data, {rows, columns}, x.dtype}, transpose_w, ConstView{}, 0.0f,
                stream);
  }
}

}  // namespace megatron::kernels::cpu

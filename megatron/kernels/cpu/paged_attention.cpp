#include "megatron/kernels/paged_attention.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <type_traits>

#include "megatron/core/parallel_for.h"
#include "megatron/kernels/cpu/fp8_row.h"
#include "megatron/kernels/cpu/paged_rows.h"
#include "megatron/kernels/cpu/simd.h"
#include "megatron/kernels/cpu/vector_math.h"
#include "megatron/kernels/cpu/workspace.h"

namespace megatron::kernels::cpu {
namespace {

// Multiply-adds below which a second thread costs more than it saves.
constexpr int64_t kMinPagedWork = 100'000;

float sum_of(simd::Vec v) {
  float sum = 0;
  for (int64_t i = 0; i < simd::kLanes; ++i) sum += v[i];
  return sum;
}

template <class T>
float dot(const float* a, const T* b, int64_t d) {
  simd::Vec sum{};
  for (int64_t c = 0; c < d; c += simd::kLanes) {
    const int64_t n = std::min(simd::kLanes, d - c);
    sum = simd::fma(simd::load_first(a + c, n), simd::load_first(b + c, n), sum);
  }
  return sum_of(sum);
}

// y += weight * x, for whole vectors of y.
template <class T>
void add_scaled(float* y, float weight, const T* x, int64_t d) {
  const simd::Vec factor = simd::broadcast(weight);
  for (int64_t c = 0; c < d; c += simd::kLanes) {
    const int64_t n = std::min(simd::kLanes, d - c);
    simd::store(y + c, simd::fma(factor, simd::load_first(x + c, n), simd::load(y + c)));
  }
}

// Scores of `length` keys become probabilities times the returned sum, which has a term of the sink
// (-infinity: none) and is NaN if one of them is.
float exponentials(float* scores, int64_t length, float sink) {
  const bool has_nan =
      std::any_of(scores, scores + length, [](float score) { return std::isnan(score); });
  if (has_nan) return std::numeric_limits<float>::quiet_NaN();
  float largest = sink;
  for (int64_t j = 0; j < length; ++j) largest = std::max(largest, scores[j]);
  float sum = fast_exp(sink - largest);
  for (int64_t j = 0; j < length; ++j) {
    scores[j] = fast_exp(scores[j] - largest);
    sum += scores[j];
  }
  return sum;
}

constexpr int64_t kMaxPagedHeadSize = 256;

// Calls f(index, channels) for tokens [begin, length) of the rows.
template <class S, class F>
void each_paged(const PagedRows<S>& rows, int64_t begin, int64_t length, const F& f) {
  rows.each(begin, length, [&](int64_t j, const S* elements, float scale) {
    if constexpr (std::is_same_v<S, Float8E4M3>) {
      float channels[kMaxPagedHeadSize];
      widen(channels, elements, scale, rows.d);
      f(j, static_cast<const float*>(channels));
    } else {
      f(j, elements);
    }
  });
}

// The bias added to the scores of a head.
struct HeadBias {
  float slope = 0;
  const float* by_distance = nullptr;
  int64_t num_distances = 0;

  HeadBias(const PagedSettings& settings, int64_t head) {
    if (settings.alibi_slopes.data != nullptr) slope = settings.alibi_slopes.as<float>()[head];
    if (settings.distance_bias.data == nullptr) return;
    num_distances = settings.distance_bias.size(1);
    by_distance = settings.distance_bias.as<float>() + head * num_distances;
  }
  // The bias of key j for the last of `length` tokens.
  float of(int64_t j, int64_t length) const {
    const int64_t distance = length - 1 - j;
    return slope * static_cast<float>(j) + (distance < num_distances ? by_distance[distance] : 0);
  }
};

// One query head over the keys and values of its group.
template <class T, class S>
void attend(T* out, const T* q, const PagedRows<S>& keys, const PagedRows<S>& values,
            int64_t length, int64_t d, const PagedSettings& settings, const HeadBias& bias,
            float sink, float* scores) {
  float scaled[kMaxPagedHeadSize];
  float sums[kMaxPagedHeadSize] = {};
  for (int64_t c = 0; c < d; ++c) scaled[c] = static_cast<float>(q[c]) * settings.scale;
  const int64_t first = settings.window == 0 ? 0 : std::max<int64_t>(0, length - settings.window);
  const float cap = settings.logit_cap;
  each_paged(keys, first, length, [&](int64_t j, const auto* key) {
    const float product = dot(scaled, key, d);
    const float capped = cap == 0 ? product : cap * fast_tanh(product / cap);
    scores[j] = capped + bias.of(j, length);
  });
  const float sum = exponentials(scores + first, length - first, sink);
  each_paged(values, first, length,
             [&](int64_t j, const auto* value) { add_scaled(sums, scores[j], value, d); });
  for (int64_t c = 0; c < d; ++c) out[c] = T(sums[c] / sum);
}

}  // namespace

void paged_attention(HeadsView out, ConstHeadsView q, const KeyValuePages& pages,
                     const PageTable& table, const PagedSettings& settings, Stream stream) {
  const int64_t rows = table.lengths.numel();
  const auto* lengths = table.lengths.as<int32_t>();
  const int64_t longest = rows == 0 ? 0 : *std::max_element(lengths, lengths + rows);
  const int64_t tasks = rows * q.heads;
  const int64_t useful = 1 + tasks * longest * q.d * 2 / kMinPagedWork;
  const int64_t workers = std::min({tasks, useful, static_cast<int64_t>(num_threads())});
  const int64_t heads_per_group = q.heads / pages.keys.size(2);
  const Scratch scratch(workers * longest * 4, stream);
  dispatch_pages(q.dtype, pages, "paged_attention", [&]<class T, class S>() {
    parallel_for(workers, 1, [&](int64_t begin, int64_t end) {
      for (int64_t worker = begin; worker < end; ++worker) {
        float* const scores = scratch.as<float>() + worker * longest;
        for (int64_t task = worker; task < tasks; task += workers) {
          const int64_t row = task / q.heads;
          const int64_t head = task % q.heads;
          if (lengths[row] == 0) continue;
          const int64_t token = table.queries.as<int32_t>()[row];
          const auto* row_pages = table.pages.as<int32_t>() + row * table.pages.size(1);
          const int64_t group = head / heads_per_group;
          attend<T, S>(static_cast<T*>(out.data) + token * out.stride_s + out.offset(0, head),
                       static_cast<const T*>(q.data) + token * q.stride_s + q.offset(0, head),
                       PagedRows<S>(pages, kKey, row_pages, group),
                       PagedRows<S>(pages, kValue, row_pages, group), lengths[row], q.d, settings,
                       HeadBias(settings, head),
                       settings.sinks.data == nullptr ? -std::numeric_limits<float>::infinity()
                                                      : settings.sinks.as<float>()[head],
                       scores);
        }
      }
    });
  });
}

void put_into_pages(const KeyValuePages& pages, ConstHeadsView k, ConstHeadsView v, ConstView slots,
                    Stream) {
  dispatch_pages(k.dtype, pages, "put_into_pages", [&]<class T, class S>() {
    const auto put = [&](Kind kind, const ConstHeadsView& x, int64_t token) {
      const int64_t first = slots.as<int32_t>()[token] * x.heads;
      for (int64_t head = 0; head < x.heads; ++head) {
        const T* const from =
            static_cast<const T*>(x.data) + token * x.stride_s + x.offset(0, head);
        S* const to = store_of(pages, kind).as<S>() + (first + head) * x.d;
        if constexpr (std::is_same_v<S, Float8E4M3>) {
          pages.scales.as<float>()[(first + head) * 2 + kind] = fp8_quantize_row(to, from, x.d);
        } else {
          std::copy(from, from + x.d, to);
        }
      }
    };
    for (int64_t token = 0; token < k.s; ++token) {
      if (slots.as<int32_t>()[token] < 0) continue;
      put(kKey, k, token);
      put(kValue, v, token);
    }
  });
}

void new_token_slots(TensorView slots, const PageTable& table, int64_t page_tokens, Stream) {
  std::fill_n(slots.as<int32_t>(), slots.numel(), -1);
  const auto* const lengths = table.lengths.as<int32_t>();
  for (int64_t row = 0; row < table.lengths.numel(); ++row) {
    if (lengths[row] == 0) continue;
    const int64_t at = lengths[row] - 1;
    const int32_t page = table.pages.as<int32_t>()[row * table.pages.size(1) + at / page_tokens];
    slots.as<int32_t>()[table.queries.as<int32_t>()[row]] =
        static_cast<int32_t>(page * page_tokens + at % page_tokens);
  }
}

void take_from_pages(HeadsView k, HeadsView v, const KeyValuePages& pages, ConstView row_pages,
                     Stream) {
  dispatch_pages(k.dtype, pages, "take_from_pages", [&]<class T, class S>() {
    const auto take = [&](Kind kind, const HeadsView& x, int64_t head) {
      PagedRows<S>(pages, kind, row_pages.as<int32_t>(), head)
          .each(0, x.s, [&](int64_t token, const S* elements, float scale) {
            T* const to = static_cast<T*>(x.data) + token * x.stride_s + x.offset(0, head);
            for (int64_t c = 0; c < x.d; ++c) {
              const auto element = static_cast<float>(elements[c]);
              to[c] = T(std::is_same_v<S, T> ? element : element * scale);
            }
          });
    };
    parallel_for(k.heads, 1, [&](int64_t begin, int64_t end) {
      for (int64_t head = begin; head < end; ++head) {
        take(kKey, k, head);
        take(kValue, v, head);
      }
    });
  });
}

}  // namespace megatron::kernels::cpu

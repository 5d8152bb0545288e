#include "megatron/kernels/paged_attention.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "megatron/core/parallel_for.h"
#include "megatron/kernels/cpu/simd.h"
#include "megatron/kernels/cpu/vector_math.h"
#include "megatron/kernels/cpu/workspace.h"

namespace megatron::kernels::cpu {
namespace {

// Multiply-adds below which a second thread costs more than it saves.
constexpr int64_t kMinWorkPerThread = 100'000;

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

// Scores of `length` keys become probabilities times the returned sum, which is NaN if one of them
// is.
float exponentials(float* scores, int64_t length) {
  const bool has_nan =
      std::any_of(scores, scores + length, [](float score) { return std::isnan(score); });
  if (has_nan) return std::numeric_limits<float>::quiet_NaN();
  float largest = -std::numeric_limits<float>::infinity();
  for (int64_t j = 0; j < length; ++j) largest = std::max(largest, scores[j]);
  float sum = 0;
  for (int64_t j = 0; j < length; ++j) {
    scores[j] = fast_exp(scores[j] - largest);
    sum += scores[j];
  }
  return sum;
}

// The keys or values of one row and one group, page by page.
template <class T>
struct Paged {
  const T* data;
  const int32_t* pages;
  int64_t page_tokens, stride_token, group_offset;

  Paged(const ConstView& store, const int32_t* row_pages, int64_t group)
      : data(static_cast<const T*>(store.data)),
        pages(row_pages),
        page_tokens(store.size(1)),
        stride_token(store.size(2) * store.size(3)),
        group_offset(group * store.size(3)) {}

  // Calls f(index, channels) for the first `length` tokens.
  template <class F>
  void each(int64_t length, const F& f) const {
    for (int64_t first = 0; first < length; first += page_tokens) {
      const T* token =
          data + pages[first / page_tokens] * page_tokens * stride_token + group_offset;
      const int64_t end = std::min(length, first + page_tokens);
      for (int64_t j = first; j < end; ++j, token += stride_token) f(j, token);
    }
  }
};

constexpr int64_t kMaxHeadSize = 256;

// What is added to the scores of a head.
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
  // Of key j for the last of `length` tokens.
  float of(int64_t j, int64_t length) const {
    const int64_t distance = length - 1 - j;
    return slope * static_cast<float>(j) + (distance < num_distances ? by_distance[distance] : 0);
  }
};

// One query head over the keys and values of its group.
template <class T>
void attend(T* out, const T* q, const Paged<T>& keys, const Paged<T>& values, int64_t length,
            int64_t d, float scale, const HeadBias& bias, float* scores) {
  float scaled[kMaxHeadSize];
  float sums[kMaxHeadSize] = {};
  for (int64_t c = 0; c < d; ++c) scaled[c] = static_cast<float>(q[c]) * scale;
  keys.each(length,
            [&](int64_t j, const T* key) { scores[j] = dot(scaled, key, d) + bias.of(j, length); });
  const float sum = exponentials(scores, length);
  values.each(length, [&](int64_t j, const T* value) { add_scaled(sums, scores[j], value, d); });
  for (int64_t c = 0; c < d; ++c) out[c] = T(sums[c] / sum);
}

}  // namespace

void paged_attention(HeadsView out, ConstHeadsView q, ConstView keys, ConstView values,
                     const PageTable& table, const PagedSettings& settings, Stream stream) {
  const int64_t rows = table.lengths.numel();
  const auto* lengths = table.lengths.as<int32_t>();
  const int64_t longest = rows == 0 ? 0 : *std::max_element(lengths, lengths + rows);
  const int64_t tasks = rows * q.heads;
  const int64_t useful = 1 + tasks * longest * q.d * 2 / kMinWorkPerThread;
  const int64_t workers = std::min({tasks, useful, static_cast<int64_t>(num_threads())});
  const int64_t heads_per_group = q.heads / keys.size(2);
  const Workspace scratch(workers * longest * 4, stream);
  dispatch_floating(q.dtype, "paged_attention", [&]<class T>() {
    parallel_for(workers, 1, [&](int64_t begin, int64_t end) {
      for (int64_t worker = begin; worker < end; ++worker) {
        float* const scores = scratch.as<float>() + worker * longest;
        for (int64_t task = worker; task < tasks; task += workers) {
          const int64_t row = task / q.heads;
          const int64_t head = task % q.heads;
          if (lengths[row] == 0) continue;
          const int64_t token = table.queries.as<int32_t>()[row];
          const auto* pages = table.pages.as<int32_t>() + row * table.pages.size(1);
          const int64_t group = head / heads_per_group;
          attend<T>(static_cast<T*>(out.data) + token * out.stride_s + out.offset(0, head),
                    static_cast<const T*>(q.data) + token * q.stride_s + q.offset(0, head),
                    Paged<T>(keys, pages, group), Paged<T>(values, pages, group), lengths[row], q.d,
                    settings.scale, HeadBias(settings, head), scores);
        }
      }
    });
  });
}

void put_into_pages(TensorView keys, TensorView values, ConstHeadsView k, ConstHeadsView v,
                    ConstView slots, Stream) {
  const int64_t bytes = size_of(keys.dtype);
  const auto put = [&](const TensorView& pages, const ConstHeadsView& x, int64_t token) {
    auto* to = static_cast<char*>(pages.data) + slots.as<int32_t>()[token] * x.heads * x.d * bytes;
    for (int64_t head = 0; head < x.heads; ++head, to += x.d * bytes) {
      const int64_t from = token * x.stride_s + x.offset(0, head);
      std::memcpy(to, static_cast<const char*>(x.data) + from * bytes,
                  static_cast<size_t>(x.d * bytes));
    }
  };
  for (int64_t token = 0; token < k.s; ++token) {
    if (slots.as<int32_t>()[token] < 0) continue;
    put(keys, k, token);
    put(values, v, token);
  }
}

}  // namespace megatron::kernels::cpu

#include "megatron/kernels/optimizer.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <optional>
#include <type_traits>

#include "megatron/core/parallel_for.h"
#include "megatron/kernels/main_param.h"

#if defined(__AVX512F__)
#include <immintrin.h>
#endif

namespace megatron::kernels::cpu {
namespace {

// The fewest elements that pay for another thread.
constexpr int64_t kOptimizerGrain = 16384;
// Elements converted at a time between 16 bits and fp32; the copies stay in the first-level cache.
constexpr int64_t kBlock = 512;

#if defined(__AVX512F__)
void convert(float* y, const Float16* x, int64_t n) {
  int64_t i = 0;
  for (; i + 16 <= n; i += 16) {
    const __m256i half = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(x + i));
    _mm512_storeu_ps(y + i, _mm512_cvtph_ps(half));
  }
  for (; i < n; ++i) y[i] = x[i];
}

void convert(Float16* y, const float* x, int64_t n) {
  int64_t i = 0;
  for (; i + 16 <= n; i += 16) {
    const __m256i half = _mm512_cvtps_ph(_mm512_loadu_ps(x + i), _MM_FROUND_TO_NEAREST_INT);
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(y + i), half);
  }
  for (; i < n; ++i) y[i] = x[i];
}
#endif

template <class Y, class X>
void convert(Y* __restrict y, const X* __restrict x, int64_t n) {
  for (int64_t i = 0; i < n; ++i) y[i] = Y(static_cast<float>(x[i]));
}

// Calls visit(begin, end, group) on pieces of [first, last) that have at most kBlock elements and
// are in one range.
template <class F>
void for_each_block(const GroupRanges& ranges, int64_t first, int64_t last, const F& visit) {
  const int64_t* ends = ranges.ends.as<int64_t>();
  const int32_t* groups = ranges.groups.as<int32_t>();
  int64_t range = std::upper_bound(ends, ends + ranges.ends.numel(), first) - ends;
  for (int64_t begin = first; begin < last;) {
    while (ends[range] <= begin) ++range;
    const int64_t end = std::min({last, ends[range], begin + kBlock});
    visit(begin, end, static_cast<size_t>(groups[range]));
    begin = end;
  }
}

// `count` elements of x in fp32: x itself, or a copy in `scratch` [kBlock].
template <class T>
const float* in_fp32(const T* x, int64_t count, float* scratch) {
  if constexpr (std::is_same_v<T, float>) {
    return x;
  } else {
    convert(scratch, x, count);
    return scratch;
  }
}

// Storage of a moment in an update.
struct Storing {
  MomentCode code;    // of fp16; is_root of fp8, too
  uint32_t seed = 0;  // of fp8
  // fp8: the key of the first block, with which numbers round at random; none: to nearest
  std::optional<uint32_t> key = {};
};

// The key of the block of moments that begins at an element.
std::optional<uint32_t> key_at(const GroupRanges& ranges, int64_t begin) {
  if (ranges.keys.data == nullptr) return std::nullopt;
  const int64_t* ends = ranges.ends.as<int64_t>();
  const int64_t range = std::upper_bound(ends, ends + ranges.ends.numel(), begin) - ends;
  const int64_t first = range == 0 ? 0 : ends[range - 1];
  return static_cast<uint32_t>(ranges.keys.as<int32_t>()[range]) +
         static_cast<uint32_t>((begin - first) / kMomentBlock);
}

uint8_t* codes_of(const Moment& x) { return static_cast<uint8_t*>(x.elements.data); }

// Elements [begin, begin + count) in fp32.
void decode_fp8(float* y, const Moment& x, int64_t begin, int64_t count, bool is_root) {
  const uint8_t* codes = codes_of(x);
  const uint8_t* exponents = x.exponents.as<uint8_t>();
  for (int64_t i = 0; i < count; ++i) {
    const float value = fp8_moment_value(codes[begin + i], exponents[(begin + i) / kMomentBlock]);
    y[i] = is_root ? value * value : value;
  }
}

// The other way; begin is the first element of a block. Changes `values`.
void encode_fp8(const Moment& x, int64_t begin, int64_t count, const Storing& how, float* values) {
  uint8_t* codes = codes_of(x);
  uint8_t* exponents = x.exponents.as<uint8_t>();
  for (int64_t first = 0; first < count; first += kMomentBlock) {
    const int64_t last = std::min(count, first + kMomentBlock);
    float largest = 0.0f;
    for (int64_t i = first; i < last; ++i) {
      if (how.code.is_root) values[i] = std::sqrt(values[i]);
      largest = std::max(largest, std::fabs(values[i]));
    }
    const uint8_t exponent = block_exponent(largest);
    exponents[(begin + first) / kMomentBlock] = exponent;
    for (int64_t i = first; i < last; ++i) {
      const auto block = static_cast<uint32_t>(first / kMomentBlock);
      const uint32_t random =
          how.key ? rounding_bits(*how.key + block, static_cast<uint32_t>(i - first), how.seed)
                  : kRoundToNearest;
      codes[begin + i] = fp8_moment_code(values[i], exponent, how.code.is_root, random);
    }
  }
}

// Elements [begin, begin + count) of a moment in fp32 while an update changes them: x itself, or a
// copy in `scratch` [kBlock], which store_block() rounds into x.
float* load_block(const Moment& x, int64_t begin, int64_t count, const Storing& how,
                  float* scratch) {
  const TensorView& elements = x.elements;
  if (elements.dtype == DType::kFloat32) return elements.as<float>() + begin;
  if (x.is_fp8()) {
    decode_fp8(scratch, x, begin, count, how.code.is_root);
  } else if (elements.dtype == DType::kBFloat16) {
    convert(scratch, elements.as<BFloat16>() + begin, count);
  } else {
    convert(scratch, elements.as<Float16>() + begin, count);
    for (int64_t i = 0; i < count; ++i) scratch[i] = decoded(scratch[i], how.code);
  }
  return scratch;
}

// `values` is what load_block() returned; changed if it was the copy.
void store_block(const Moment& x, int64_t begin, int64_t count, const Storing& how, float* values) {
  const TensorView& elements = x.elements;
  if (elements.dtype == DType::kFloat32) return;
  if (x.is_fp8()) return encode_fp8(x, begin, count, how, values);
  if (elements.dtype == DType::kBFloat16) {
    return convert(elements.as<BFloat16>() + begin, values, count);
  }
  for (int64_t i = 0; i < count; ++i) values[i] = encoded(values[i], how.code);
  convert(elements.as<Float16>() + begin, values, count);
}

void join(float* __restrict w, const BFloat16* __restrict p, const int16_t* __restrict r,
          int64_t n) {
  for (int64_t i = 0; i < n; ++i) w[i] = std::bit_cast<float>(joined(p[i].bits, r[i]));
}

void split(int16_t* __restrict r, const float* __restrict w, const BFloat16* __restrict p,
           int64_t n) {
  for (int64_t i = 0; i < n; ++i) r[i] = remainder_of(std::bit_cast<uint32_t>(w[i]), p[i].bits);
}

// Rounds the w of elements [begin, begin + count) at random.
void store_rounded(BFloat16* main, const float* w, int64_t begin, int64_t count,
                   const RoundingRanges& ranges) {
  const int64_t* ends = ranges.ends.as<int64_t>();
  const auto* places = reinterpret_cast<const RoundingPlace*>(ranges.places.as<int64_t>());
  int64_t range = std::upper_bound(ends, ends + ranges.ends.numel(), begin) - ends;
  for (int64_t at = begin; at < begin + count; ++range) {
    const RoundingPlace& place = places[range];
    RoundingBits bits(place.key, ranges.step);
    for (; at < std::min(begin + count, ends[range]); ++at) {
      main[at] =
          rounded_at_random(std::bit_cast<uint32_t>(w[at - begin]), bits.of(place.element(at)));
    }
  }
}

// Calls update(w, g, begin, count, group); w and g are fp32 pointers at the block's first element.
// Converts 16-bit inputs first; finally rounds the updated w into the model's copy.
template <class F>
void update_blocks(const char* who, TensorView model, TensorView main, ConstView grad,
                   const GroupRanges& ranges, const F& update) {
  expect_shape(grad.shape, main.shape, who);
  if (!model.is_null()) expect_shape(model.shape, main.shape, who);
  float* whole = main.dtype == DType::kFloat32 ? main.as<float>() : nullptr;
  BFloat16* narrow = main.dtype == DType::kBFloat16 ? main.as<BFloat16>() : nullptr;
  int16_t* remainder = whole == nullptr && narrow == nullptr ? main.as<int16_t>() : nullptr;
  dispatch_floating(grad.dtype, who, [&]<class G>() {
    dispatch_floating(model.is_null() ? DType::kFloat32 : model.dtype, who, [&]<class P>() {
      const G* g = grad.as<G>();
      P* out = model.is_null() ? nullptr : model.as<P>();
      const int64_t n = main.numel();
      const int64_t blocks = (n + kBlock - 1) / kBlock;  // a thread has whole blocks of moments
      parallel_for(blocks, kOptimizerGrain / kBlock, [&](int64_t first, int64_t last) {
        float g_scratch[kBlock];
        float w_scratch[kBlock];
        const int64_t end_of_all = std::min(n, last * kBlock);
        for_each_block(ranges, first * kBlock, end_of_all,
                       [&](int64_t begin, int64_t end, size_t group) {
                         const int64_t count = end - begin;
                         float* w = whole != nullptr ? whole + begin : w_scratch;
                         if constexpr (std::is_same_v<P, BFloat16>) {
                           if (remainder != nullptr) join(w, out + begin, remainder + begin, count);
                         }
                         if (narrow != nullptr) convert(w, narrow + begin, count);
                         update(w, in_fp32(g + begin, count, g_scratch), begin, count, group);
                         if (narrow != nullptr) {
                           store_rounded(narrow, w, begin, count, ranges.rounding);
                           convert(w, narrow + begin, count);  // `model` gets the same bits
                         }
                         if (out != nullptr) convert(out + begin, w, count);
                         if constexpr (std::is_same_v<P, BFloat16>) {
                           if (remainder != nullptr)
                             split(remainder + begin, w, out + begin, count);
                         }
                       });
      });
    });
  });
}

void adam_block(float* __restrict w, float* __restrict m, float* __restrict v,
                const float* __restrict g, int64_t n, const AdamNumbers& numbers, float scale) {
  const auto lr = static_cast<float>(numbers.lr);
  const auto beta1 = static_cast<float>(numbers.beta1);
  const auto beta2 = static_cast<float>(numbers.beta2);
  const auto rest1 = static_cast<float>(1.0 - numbers.beta1);
  const auto rest2 = static_cast<float>(1.0 - numbers.beta2);
  const auto eps = static_cast<float>(numbers.eps);
  const auto weight_decay = static_cast<float>(numbers.weight_decay);
  const auto unbias1 = static_cast<float>(1.0 / numbers.bias_correction1);
  const auto unbias2 = static_cast<float>(1.0 / numbers.bias_correction2);
  for (int64_t i = 0; i < n; ++i) {
    const float gi = scale * g[i];
    const float mi = beta1 * m[i] + rest1 * gi;
    const float vi = beta2 * v[i] + rest2 * gi * gi;
    const float step = mi * unbias1 / (std::sqrt(vi * unbias2) + eps);
    m[i] = mi;
    v[i] = vi;
    w[i] -= lr * (step + weight_decay * w[i]);
  }
}

void sgd_block(float* __restrict w, float* __restrict buffer, const float* __restrict g, int64_t n,
               const SgdNumbers& numbers, float scale) {
  const auto lr = static_cast<float>(numbers.lr);
  const auto momentum = static_cast<float>(numbers.momentum);
  const auto weight_decay = static_cast<float>(numbers.weight_decay);
  for (int64_t i = 0; i < n; ++i) {
    const float gi = scale * g[i] + weight_decay * w[i];
    buffer[i] = momentum * buffer[i] + gi;
    w[i] -= lr * buffer[i];
  }
}

// 1, -1 or 0; NaN stays NaN.
float sign_of(float x) { return x > 0.0f ? 1.0f : x < 0.0f ? -1.0f : x; }

void lion_block(float* __restrict w, float* __restrict m, const float* __restrict g, int64_t n,
                const LionNumbers& numbers, float scale) {
  const auto lr = static_cast<float>(numbers.lr);
  const auto beta1 = static_cast<float>(numbers.beta1);
  const auto beta2 = static_cast<float>(numbers.beta2);
  const auto rest1 = static_cast<float>(1.0 - numbers.beta1);
  const auto rest2 = static_cast<float>(1.0 - numbers.beta2);
  const auto weight_decay = static_cast<float>(numbers.weight_decay);
  for (int64_t i = 0; i < n; ++i) {
    const float gi = scale * g[i];
    const float step = sign_of(beta1 * m[i] + rest1 * gi);
    m[i] = beta2 * m[i] + rest2 * gi;
    w[i] -= lr * (step + weight_decay * w[i]);
  }
}

const StepState& state_in(ConstView state, const char* who) {
  expect_shape(state.shape, {kStepStateBytes}, who);
  return *reinterpret_cast<const StepState*>(state.as<uint8_t>());
}

}  // namespace

void adam(TensorView model, TensorView main, const Moment& exp_avg, const Moment& exp_avg_sq,
          ConstView grad, const GroupRanges& ranges, std::span<const AdamNumbers> numbers,
          ConstView state, Stream) {
  const StepState& step = state_in(state, "adam");
  if (step.is_skipped != 0) return;
  const auto scale = static_cast<float>(step.grad_scale);
  update_blocks("adam", model, main, grad, ranges,
                [&](float* w, const float* g, int64_t begin, int64_t count, size_t group) {
                  float m_scratch[kBlock];
                  float v_scratch[kBlock];
                  const auto scale16 = static_cast<float>(numbers[group].fp16_scale);
                  const uint32_t seed = numbers[group].rounding_seed;
                  const std::optional<uint32_t> key = key_at(ranges, begin);
                  const Storing first = {{.scale = scale16}, seed, key};
                  const Storing second = {{.scale = scale16, .is_root = true}, ~seed, key};
                  float* m = load_block(exp_avg, begin, count, first, m_scratch);
                  float* v = load_block(exp_avg_sq, begin, count, second, v_scratch);
                  adam_block(w, m, v, g, count, numbers[group], scale);
                  store_block(exp_avg, begin, count, first, m);
                  store_block(exp_avg_sq, begin, count, second, v);
                });
}

void sgd_momentum(TensorView model, TensorView main, TensorView momentum_buffer, ConstView grad,
                  const GroupRanges& ranges, std::span<const SgdNumbers> numbers, ConstView state,
                  Stream) {
  const StepState& step = state_in(state, "sgd_momentum");
  if (step.is_skipped != 0) return;
  expect_shape(momentum_buffer.shape, main.shape, "sgd_momentum: momentum_buffer");
  float* buffer = momentum_buffer.as<float>();
  const auto scale = static_cast<float>(step.grad_scale);
  update_blocks("sgd_momentum", model, main, grad, ranges,
                [&](float* w, const float* g, int64_t begin, int64_t count, size_t group) {
                  sgd_block(w, buffer + begin, g, count, numbers[group], scale);
                });
}

void lion(TensorView model, TensorView main, const Moment& exp_avg, ConstView grad,
          const GroupRanges& ranges, std::span<const LionNumbers> numbers, ConstView state,
          Stream) {
  const StepState& step = state_in(state, "lion");
  if (step.is_skipped != 0) return;
  const auto scale = static_cast<float>(step.grad_scale);
  update_blocks(
      "lion", model, main, grad, ranges,
      [&](float* w, const float* g, int64_t begin, int64_t count, size_t group) {
        float m_scratch[kBlock];
        const Storing how = {.code = {.scale = static_cast<float>(numbers[group].fp16_scale)}};
        float* m = load_block(exp_avg, begin, count, how, m_scratch);
        lion_block(w, m, g, count, numbers[group], scale);
        store_block(exp_avg, begin, count, how, m);
      });
}

void join_main_params(TensorView main, ConstView model, ConstView remainder, Stream) {
  float* w = main.as<float>();
  const auto* p = model.as<BFloat16>();
  const auto* r = remainder.as<int16_t>();
  parallel_for(main.numel(), kOptimizerGrain, [&](int64_t first, int64_t last) {
    join(w + first, p + first, r + first, last - first);
  });
}

void split_main_params(TensorView remainder, ConstView main, ConstView model, Stream) {
  auto* r = remainder.as<int16_t>();
  const float* w = main.as<float>();
  const auto* p = model.as<BFloat16>();
  parallel_for(main.numel(), kOptimizerGrain, [&](int64_t first, int64_t last) {
    split(r + first, w + first, p + first, last - first);
  });
}

void decode_moment(TensorView moment, const Moment& codes, const MomentCode& code, Stream) {
  float* y = moment.as<float>();
  parallel_for(moment.numel(), kOptimizerGrain, [&](int64_t first, int64_t last) {
    if (codes.is_fp8()) return decode_fp8(y + first, codes, first, last - first, code.is_root);
    const auto* x = codes.elements.as<Float16>();
    for (int64_t i = first; i < last; ++i) y[i] = decoded(x[i], code);
  });
}

void encode_moment(const Moment& codes, ConstView moment, const MomentCode& code, Stream) {
  const float* x = moment.as<float>();
  const int64_t n = moment.numel();
  parallel_for(
      (n + kBlock - 1) / kBlock, kOptimizerGrain / kBlock, [&](int64_t first, int64_t last) {
        float values[kBlock];
        for (int64_t begin = first * kBlock; begin < std::min(n, last * kBlock); begin += kBlock) {
          const int64_t count = std::min(kBlock, n - begin);
          std::copy(x + begin, x + begin + count, values);
          store_block(codes, begin, count, {.code = code}, values);
        }
      });
}

void squares_and_zeros(TensorView y, ConstView x, const GroupRanges& ranges, TensorView scratch,
                       Stream) {
  const int64_t n = x.numel();
  const int64_t num_groups = y.size(0);
  const int64_t num_chunks = scratch.size(0);
  double* partials = scratch.as<double>();  // [chunk, group]: squares, zeros
  dispatch_floating(x.dtype, "squares_and_zeros", [&]<class T>() {
    const T* in = x.as<T>();
    parallel_for(num_chunks, 1, [&](int64_t first_chunk, int64_t last_chunk) {
      float converted[kBlock];
      for (int64_t chunk = first_chunk; chunk < last_chunk; ++chunk) {
        double* of_group = partials + 2 * chunk * num_groups;
        std::fill(of_group, of_group + 2 * num_groups, 0.0);
        for_each_block(ranges, chunk * kMeasureChunk, std::min(n, (chunk + 1) * kMeasureChunk),
                       [&](int64_t begin, int64_t end, size_t group) {
                         const int64_t count = end - begin;
                         const float* values = in_fp32(in + begin, count, converted);
                         double squares = 0.0;
                         int32_t zeros = 0;
#pragma omp simd reduction(+ : squares, zeros)
                         for (int64_t i = 0; i < count; ++i) {
                           const double value = values[i];
                           squares += value * value;
                           zeros += values[i] == 0.0f ? 1 : 0;
                         }
                         of_group[2 * group] += squares;
                         of_group[2 * group + 1] += zeros;
                       });
      }
    });
  });
  double* out = y.as<double>();
  std::fill(out, out + 2 * num_groups, 0.0);
  for (int64_t chunk = 0; chunk < num_chunks; ++chunk) {
    const double* of_group = partials + 2 * chunk * num_groups;
    for (int64_t i = 0; i < 2 * num_groups; ++i) out[i] += of_group[i];
  }
}

void find_not_finite(TensorView state, ConstView x, const GroupRanges& ranges, Stream) {
  auto& step = *reinterpret_cast<StepState*>(state.as<uint8_t>());
  if (step.is_skipped == 0) return;
  dispatch_floating(x.dtype, "find_not_finite", [&]<class T>() {
    const T* in = x.as<T>();
    for_each_block(ranges, 0, x.numel(), [&](int64_t begin, int64_t end, size_t group) {
      const bool is_finite = std::all_of(
          in + begin, in + end, [](T value) { return std::isfinite(static_cast<float>(value)); });
      if (is_finite) return;
      step.first_not_finite = std::min(step.first_not_finite, static_cast<int64_t>(group));
    });
  });
}

}  // namespace megatron::kernels::cpu

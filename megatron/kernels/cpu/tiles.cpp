#include "megatron/kernels/cpu/tiles.h"

#include <cstring>

#if defined(__F16C__)
#include <immintrin.h>
#endif

namespace megatron::kernels::cpu {
namespace {

// Compilers do not vectorise conversions of fp16 by themselves.
void halves_to_floats(float* out, const Float16* in, int64_t n) {
  int64_t i = 0;
#if defined(__AVX512F__)
  for (; i + 16 <= n; i += 16) {
    const __m256i bits = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(in + i));
    _mm512_storeu_ps(out + i, _mm512_cvtph_ps(bits));
  }
#elif defined(__F16C__)
  for (; i + 8 <= n; i += 8) {
    const __m128i bits = _mm_loadu_si128(reinterpret_cast<const __m128i*>(in + i));
    _mm256_storeu_ps(out + i, _mm256_cvtph_ps(bits));
  }
#endif
  for (; i < n; ++i) out[i] = in[i];
}

void floats_to_halves(Float16* out, const float* in, int64_t n) {
  int64_t i = 0;
#if defined(__AVX512F__)
  for (; i + 16 <= n; i += 16) {
    const __m256i bits = _mm512_cvtps_ph(_mm512_loadu_ps(in + i), _MM_FROUND_TO_NEAREST_INT);
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(out + i), bits);
  }
#elif defined(__F16C__)
  for (; i + 8 <= n; i += 8) {
    const __m128i bits = _mm256_cvtps_ph(_mm256_loadu_ps(in + i), _MM_FROUND_TO_NEAREST_INT);
    _mm_storeu_si128(reinterpret_cast<__m128i*>(out + i), bits);
  }
#endif
  for (; i < n; ++i) out[i] = Float16(in[i]);
}

// Returns the dtype if it is fp32, fp16 or bf16; throws otherwise.
DType floating(DType dtype, const char* who) {
  return dispatch_floating(dtype, who, [&]<class T>() { return dtype_of<T>(); });
}

}  // namespace

void to_floats(float* out, const void* in, DType dtype, int64_t n) {
  if (dtype == DType::kFloat32) {
    std::memcpy(out, in, static_cast<size_t>(n) * sizeof(float));
  } else if (dtype == DType::kFloat16) {
    halves_to_floats(out, static_cast<const Float16*>(in), n);
  } else {
    const auto* from = static_cast<const BFloat16*>(in);
#pragma omp simd
    for (int64_t i = 0; i < n; ++i) out[i] = from[i];
  }
}

void from_floats(void* out, DType dtype, const float* in, int64_t n) {
  if (dtype == DType::kFloat32) {
    std::memcpy(out, in, static_cast<size_t>(n) * sizeof(float));
  } else if (dtype == DType::kFloat16) {
    floats_to_halves(static_cast<Float16*>(out), in, n);
  } else {
    auto* to = static_cast<BFloat16*>(out);
#pragma omp simd
    for (int64_t i = 0; i < n; ++i) to[i].bits = BFloat16(in[i]).bits;
  }
}

void round_to(DType dtype, float* values, int64_t n) {
  if (dtype == DType::kFloat32) return;
  uint16_t rounded[kTileSize];
  from_floats(rounded, dtype, values, n);
  to_floats(values, rounded, dtype, n);
}

TileReader::TileReader(ConstView x, const char* who)
    : data_(static_cast<const std::byte*>(x.data)),
      dtype_(x.data == nullptr ? DType::kFloat32 : floating(x.dtype, who)),
      width_(size_of(dtype_)) {}

TileWriter::TileWriter(TensorView y, const char* who)
    : data_(static_cast<std::byte*>(y.data)),
      dtype_(y.data == nullptr ? DType::kFloat32 : floating(y.dtype, who)),
      width_(size_of(dtype_)) {}

const float* TileReader::read(int64_t at, int64_t n, Tile& buffer) const {
  if (dtype_ == DType::kFloat32) return reinterpret_cast<const float*>(data_) + at;
  to_floats(buffer.values, data_ + at * width_, dtype_, n);
  return buffer.values;
}

float* TileWriter::begin(int64_t at, Tile& buffer) const {
  return dtype_ == DType::kFloat32 ? reinterpret_cast<float*>(data_) + at : buffer.values;
}

void TileWriter::commit(int64_t at, int64_t n, const Tile& buffer) const {
  if (dtype_ != DType::kFloat32) from_floats(data_ + at * width_, dtype_, buffer.values, n);
}

void TileWriter::accumulate(int64_t at, int64_t n, const Tile& sums, float beta) const {
  Tile y;
  if (beta == 0) {
    from_floats(data_ + at * width_, dtype_, sums.values, n);
    return;
  }
  to_floats(y.values, data_ + at * width_, dtype_, n);
#pragma omp simd
  for (int64_t i = 0; i < n; ++i) y.values[i] = beta * y.values[i] + sums.values[i];
  from_floats(data_ + at * width_, dtype_, y.values, n);
}

}  // namespace megatron::kernels::cpu

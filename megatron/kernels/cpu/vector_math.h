#pragma once

#include <bit>
#include <cmath>
#include <cstdint>

// exp, tanh, erf, log, sine and cosine in fp32, without branches or calls, so that compilers
// vectorise loops over them. Errors are relative to the exact function, in units of the last place
// (ulp).
namespace megatron::kernels::cpu {

// a * b + c, rounded once if the machine has FMA.
inline float fma(float a, float b, float c) {
#if defined(__FMA__)
  return __builtin_fmaf(a, b, c);
#else
  return a * b + c;
#endif
}

// e^x within 1 ulp, also into subnormals; 0 and infinity beyond; NaN stays NaN.
inline float fast_exp(float x) {
  constexpr float kLog2E = 1.44269504f;
  constexpr float kLn2High = 0.693359375f;  // 9 bits: n * kLn2High is exact
  constexpr float kLn2Low = -2.12194440e-4f;
  constexpr float kRounder = 12582912.0f;  // 1.5 * 2^23: adding it rounds to an integer

  x = x < -104.0f ? -104.0f : x;
  x = x > 89.0f ? 89.0f : x;
  const float rounded = fma(x, kLog2E, kRounder);
  const float n = rounded - kRounder;
  const float r = fma(n, -kLn2Low, fma(n, -kLn2High, x));  // |r| <= ln(2) / 2
  float p = 0.00139261759f;
  p = fma(p, r, 0.00836317334f);
  p = fma(p, r, 0.0416665561f);
  p = fma(p, r, 0.166665778f);
  p = fma(p, r, 0.5f);
  p = fma(p * r, r, r) + 1.0f;
  // Two factors, because 2^n may be out of fp32's range when e^x is not.
  const int32_t exponent = std::bit_cast<int32_t>(rounded) - std::bit_cast<int32_t>(kRounder);
  const int32_t half = exponent >> 1;
  const float first = std::bit_cast<float>((half + 127) << 23);
  const float second = std::bit_cast<float>((exponent - half + 127) << 23);
  return p * first * second;
}

// 1 / (1 + e^-x) within 2 ulp.
inline float fast_sigmoid(float x) { return 1.0f / (1.0f + fast_exp(-x)); }

// tanh x within 2 ulp.
inline float fast_tanh(float x) {
  const float magnitude = std::fabs(x);
  const float large = 1.0f - 2.0f / (fast_exp(2.0f * magnitude) + 1.0f);
  const float z = x * x;
  float p = -0.00610017078f;
  p = fma(p, z, 0.0209995527f);
  p = fma(p, z, -0.0538514107f);
  p = fma(p, z, 0.133327737f);
  p = fma(p, z, -0.333333284f);
  const float small = fma(p * z, x, x);
  return magnitude < 0.625f ? small : std::copysign(large, x);
}

// erf x within 2 ulp.
inline float fast_erf(float x) {
  const float magnitude = std::fabs(x);
  const float t = magnitude > 4.0f ? 4.0f : magnitude;  // erf(4) rounds to 1
  float q = -1.64306368e-06f;                           // -log(erfc(t)) on [0.9, 4]
  q = fma(q, t, 4.61638592e-05f);
  q = fma(q, t, -0.000597585749f);
  q = fma(q, t, 0.00476262579f);
  q = fma(q, t, -0.0264276378f);
  q = fma(q, t, 0.110087164f);
  q = fma(q, t, 0.631823897f);
  q = fma(q, t, 1.13023102f);
  q = fma(q, t, -0.000318539649f);
  const float large = 1.0f - fast_exp(-q);
  const float z = x * x;
  float p = -0.00059549039f;  // erf(x) / x - 1 in x^2
  p = fma(p, z, 0.00498647708f);
  p = fma(p, z, -0.0267623495f);
  p = fma(p, z, 0.112817094f);
  p = fma(p, z, -0.376124859f);
  p = fma(p, z, 0.128379151f);
  const float small = fma(p, x, x);
  const float result = magnitude < 0.92f ? small : std::copysign(large, x);
  return x != x ? x : result;
}

// log x within 2 ulp. REQUIRES: x is positive, finite and not subnormal.
inline float fast_log(float x) {
  constexpr float kLn2High = 0.693359375f;
  constexpr float kLn2Low = -2.12194440e-4f;
  constexpr int32_t kSqrtHalf = 0x3f3504f3;  // the bits of sqrt(1/2)

  // x = 2^n * (1 + r) with 1 + r in [sqrt(1/2), sqrt(2)): r is exact, and small near x = 1.
  const int32_t offset = std::bit_cast<int32_t>(x) - kSqrtHalf;
  const auto n = static_cast<float>(offset >> 23);
  const float r = std::bit_cast<float>((offset & 0x007fffff) + kSqrtHalf) - 1.0f;
  float p = 0.0674660124f;
  p = fma(p, r, -0.116756413f);
  p = fma(p, r, 0.118881746f);
  p = fma(p, r, -0.124055914f);
  p = fma(p, r, 0.142195509f);
  p = fma(p, r, -0.166679957f);
  p = fma(p, r, 0.200021187f);
  p = fma(p, r, -0.250000096f);
  p = fma(p, r, 0.333333126f);
  const float square = r * r;
  const float low = fma(n, kLn2Low, fma(-0.5f, square, p * r * square));
  return fma(n, kLn2High, r + low);
}

struct SinCos {
  float sin;
  float cos;
};

// sin(2 pi t) and cos(2 pi t), each within 1e-7. REQUIRES: |t| <= 2^20.
inline SinCos fast_sin_cos_of_turns(float t) {
  constexpr float kRounder = 12582912.0f;  // 1.5 * 2^23: adding it rounds to an integer

  const float rounded = fma(4.0f, t, kRounder);
  const float r = fma(-0.25f, rounded - kRounder, t);  // exact; |r| <= 1/8
  const int32_t quarter = std::bit_cast<int32_t>(rounded) - std::bit_cast<int32_t>(kRounder);
  const float z = r * r;
  float s = -75.4020678f;
  s = fma(s, z, 81.5925535f);
  s = fma(s, z, -41.3416626f);
  s = fma(s, z, 6.28318529f) * r;
  float c = 59.2459619f;
  c = fma(c, z, -85.4437417f);
  c = fma(c, z, 64.9393265f);
  c = fma(c, z, -19.7392087f);
  c = fma(c, z, 1.0f);
  const bool swap = (quarter & 1) != 0;
  const float sin = swap ? c : s;
  const float cos = swap ? s : c;
  return {(quarter & 2) != 0 ? -sin : sin, ((quarter + 1) & 2) != 0 ? -cos : cos};
}

}  // namespace megatron::kernels::cpu

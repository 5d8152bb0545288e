#include "megatron/comm/reduce.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <type_traits>

#include "megatron/core/error.h"
#include "megatron/core/half.h"
#include "megatron/core/parallel_for.h"

namespace megatron::comm {
namespace {

constexpr int64_t kGrain = int64_t{64} << 10;  // elements or bytes that pay for a thread
constexpr int64_t kChunk = 1024;               // elements; their sums stay in the L1 cache

template <class Sum>
Sum larger(Sum a, Sum b) {
  if constexpr (std::is_floating_point_v<Sum>) return ((a < b) | (b != b)) ? b : a;
  return a < b ? b : a;
}

template <class T, Reduce kOp>
void reduce_range(std::span<void* const> out, std::span<const void* const> in, int64_t begin,
                  int64_t end) {
  constexpr bool kIsHalf = std::is_same_v<T, BFloat16> || std::is_same_v<T, Float16>;
  using Sum = std::conditional_t<kIsHalf, float, T>;
  std::array<Sum, kChunk> sums;
  for (int64_t at = begin; at < end; at += kChunk) {
    const int64_t count = std::min(kChunk, end - at);
    Sum* const sum = sums.data();
    const T* const first = static_cast<const T*>(in[0]) + at;
    for (int64_t i = 0; i < count; ++i) sum[i] = static_cast<Sum>(first[i]);
    for (const void* const input : in.subspan(1)) {
      const T* const x = static_cast<const T*>(input) + at;
      for (int64_t i = 0; i < count; ++i) {
        const Sum value = static_cast<Sum>(x[i]);
        sum[i] = kOp == Reduce::kSum ? sum[i] + value : larger(sum[i], value);
      }
    }
    for (void* const output : out) {
      T* const y = static_cast<T*>(output) + at;
      for (int64_t i = 0; i < count; ++i) y[i] = static_cast<T>(sum[i]);
    }
  }
}

template <class T>
void reduce_as(std::span<void* const> out, std::span<const void* const> in, int64_t count,
               Reduce op) {
  parallel_for(count, kGrain, [&](int64_t begin, int64_t end) {
    if (op == Reduce::kSum) {
      reduce_range<T, Reduce::kSum>(out, in, begin, end);
    } else {
      reduce_range<T, Reduce::kMax>(out, in, begin, end);
    }
  });
}

// Calls f(T(), Sum()) with the element type of a dtype and the type of its sums.
template <class F>
void with_types(DType dtype, const F& f) {
  switch (dtype) {
    case DType::kFloat32:
      return f(float{}, float{});
    case DType::kFloat16:
      return f(Float16{}, float{});
    case DType::kBFloat16:
      return f(BFloat16{}, float{});
    case DType::kFloat64:
      return f(double{}, double{});
    case DType::kInt64:
      return f(int64_t{}, int64_t{});
    case DType::kInt32:
      return f(int32_t{}, int32_t{});
    default:
      throw DtypeError(fmt::format("elements of {} cannot be reduced", megatron::name_of(dtype)));
  }
}

}  // namespace

void reduce_in_order(std::span<void* const> out, std::span<const void* const> in, int64_t count,
                     DType dtype, Reduce op) {
  with_types(dtype, [&](auto element, auto) { reduce_as<decltype(element)>(out, in, count, op); });
}

DType sum_dtype(DType dtype) {
  return dtype == DType::kFloat16 || dtype == DType::kBFloat16 ? DType::kFloat32 : dtype;
}

void begin_sum(void* sums, const void* x, int64_t count, DType dtype) {
  with_types(dtype, [&](auto element, auto sum) {
    const auto* const from = static_cast<const decltype(element)*>(x);
    auto* const to = static_cast<decltype(sum)*>(sums);
    for (int64_t i = 0; i < count; ++i) to[i] = static_cast<decltype(sum)>(from[i]);
  });
}

void add_to_sum(void* sums, const void* x, int64_t count, DType dtype, Reduce op) {
  with_types(dtype, [&](auto element, auto sum) {
    const auto* const from = static_cast<const decltype(element)*>(x);
    auto* const to = static_cast<decltype(sum)*>(sums);
    for (int64_t i = 0; i < count; ++i) {
      const auto value = static_cast<decltype(sum)>(from[i]);
      to[i] = op == Reduce::kSum ? to[i] + value : larger(to[i], value);
    }
  });
}

void end_sum(void* y, const void* sums, int64_t count, DType dtype) {
  with_types(dtype, [&](auto element, auto sum) {
    const auto* const from = static_cast<const decltype(sum)*>(sums);
    auto* const to = static_cast<decltype(element)*>(y);
    for (int64_t i = 0; i < count; ++i) to[i] = static_cast<decltype(element)>(from[i]);
  });
}

void copy_host(void* to, const void* from, int64_t bytes) {
  if (to == from) return;
  parallel_for(bytes, 4 * kGrain, [&](int64_t begin, int64_t end) {
    std::memcpy(static_cast<std::byte*>(to) + begin, static_cast<const std::byte*>(from) + begin,
                static_cast<size_t>(end - begin));
  });
}

}  // namespace megatron::comm

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

constexpr int64_t kGrain = int64_t{64} << 10;  // elements or bytes that are worth a thread
constexpr int64_t kChunk = 1024;               // elements; their sums stay in the first cache

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

}  // namespace

void reduce_in_order(std::span<void* const> out, std::span<const void* const> in, int64_t count,
                     DType dtype, Reduce op) {
  switch (dtype) {
    case DType::kFloat32:
      return reduce_as<float>(out, in, count, op);
    case DType::kFloat16:
      return reduce_as<Float16>(out, in, count, op);
    case DType::kBFloat16:
      return reduce_as<BFloat16>(out, in, count, op);
    case DType::kFloat64:
      return reduce_as<double>(out, in, count, op);
    case DType::kInt64:
      return reduce_as<int64_t>(out, in, count, op);
    case DType::kInt32:
      return reduce_as<int32_t>(out, in, count, op);
    default:
      throw DtypeError(fmt::format("elements of {} cannot be reduced", megatron::name_of(dtype)));
  }
}

void copy_host(void* to, const void* from, int64_t bytes) {
  if (to == from) return;
  parallel_for(bytes, 4 * kGrain, [&](int64_t begin, int64_t end) {
    std::memcpy(static_cast<std::byte*>(to) + begin, static_cast<const std::byte*>(from) + begin,
                static_cast<size_t>(end - begin));
  });
}

}  // namespace megatron::comm

#include "megatron/kernels/rotary.h"

#include "megatron/kernels/cuda/heads.cuh"
#include "megatron/kernels/cuda/launch.cuh"

namespace megatron::kernels::cuda {
namespace {

struct Rotation {
  AnyOutput x;
  HeadsLayout layout;
  const float* table;  // [positions, 2 * half]
  const int64_t* ids;  // [b, s] or null
  int64_t s, half, positions, offset;
  float sign;
};

__device__ __forceinline__ void rotate(float& a, float& b, float cosine, float sine) {
  const float before = a;
  a = before * cosine - b * sine;
  b = b * cosine + before * sine;
}

// A thread rotates N adjacent pairs of one head. A position outside the table has no angle: its
// token becomes NaN, so that the error cannot go unnoticed.
template <RotaryPairs kPairs, int N>
__global__ void __launch_bounds__(kThreads) rotary_kernel(const Rotation r) {
  for_each_unit(
      r.layout, r.s, r.half / N, [&](int64_t i, int64_t batch, int64_t head, int64_t unit) {
        const int64_t pair = unit * N;
        const int64_t position = r.ids == nullptr ? r.offset + i : r.ids[batch * r.s + i];
        const bool is_known = position >= 0 && position < r.positions;

        const float* const cosines = r.table + (is_known ? position : 0) * 2 * r.half + pair;
        float c[N], s[N];
        load(c, cosines);
        load(s, cosines + r.half);
#pragma unroll
        for (int j = 0; j < N; ++j) {
          c[j] = is_known ? c[j] : nanf("");
          s[j] *= r.sign;
        }
        const int64_t first = r.layout.offset(i, batch, head);
        if constexpr (kPairs == RotaryPairs::kHalves) {
          float a[N], b[N];
          r.x.read(a, first + pair);
          r.x.read(b, first + r.half + pair);
#pragma unroll
          for (int j = 0; j < N; ++j) rotate(a[j], b[j], c[j], s[j]);
          r.x.write(first + pair, a);
          r.x.write(first + r.half + pair, b);
        } else if constexpr (N > 1) {
          float ab[2 * N];
          r.x.read(ab, first + 2 * pair);
#pragma unroll
          for (int j = 0; j < N; ++j) rotate(ab[2 * j], ab[2 * j + 1], c[j], s[j]);
          r.x.write(first + 2 * pair, ab);
        } else {  // a pair may begin at an odd element
          float a[1], b[1];
          r.x.read(a, first + 2 * pair);
          r.x.read(b, first + 2 * pair + 1);
          rotate(a[0], b[0], c[0], s[0]);
          r.x.write(first + 2 * pair, a);
          r.x.write(first + 2 * pair + 1, b);
        }
      });
}

template <RotaryPairs kPairs, int N>
void launch(const Rotation& rotation, Stream stream) {
  const int64_t tokens = rotation.s * rotation.layout.b;
  const int64_t units = rotation.layout.heads * (rotation.half / N);
  if (tokens * units == 0) return;
  const TokenGrid grid = grid_of_tokens(tokens, units);
  rotary_kernel<kPairs, N><<<grid.blocks, grid.threads, 0, native(stream)>>>(rotation);
  MG_CUDA(cudaGetLastError());
}

}  // namespace

void rotary_inplace(HeadsView x, ConstView table, ConstView position_ids, int64_t offset,
                    RotaryPairs pairs, bool inverse, Stream stream) {
  expect_floating(x.dtype, "rotary_inplace");
  const int64_t half = table.size(1) / 2;
  const Rotation rotation{
      .x = {x.data, x.dtype},
      .layout = layout_of(x),
      .table = table.as<float>(),
      .ids = position_ids.data == nullptr ? nullptr : position_ids.as<int64_t>(),
      .s = x.s,
      .half = half,
      .positions = table.size(0),
      .offset = offset,
      .sign = inverse ? -1.0f : 1.0f};
  const bool aligned = heads_are_aligned(x, 16) && is_aligned(table.data);
  constexpr int kHalfVector = 8;
  constexpr int kPairVector = 4;
  if (pairs == RotaryPairs::kHalves) {
    if (aligned && half % kHalfVector == 0) {
      launch<RotaryPairs::kHalves, kHalfVector>(rotation, stream);
    } else {
      launch<RotaryPairs::kHalves, 1>(rotation, stream);
    }
  } else if (aligned && half % kPairVector == 0) {
    launch<RotaryPairs::kInterleaved, kPairVector>(rotation, stream);
  } else {
    launch<RotaryPairs::kInterleaved, 1>(rotation, stream);
  }
}

}  // namespace megatron::kernels::cuda

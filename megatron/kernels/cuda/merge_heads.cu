#include "megatron/kernels/cuda/heads.cuh"
#include "megatron/kernels/cuda/launch.cuh"
#include "megatron/kernels/merge_heads.h"

namespace megatron::kernels::cuda {
namespace {

// The heads that a kernel writes, and those that it reads.
struct Pair {
  AnyOutput dst;
  AnyInput src;
  HeadsLayout to, from;
  int64_t s, d;
};

// Calls f(dst, src, i, batch, head), arrays of N floats, and stores dst. Only reads_dst loads it.
template <int N, class F>
__global__ void __launch_bounds__(kThreads) pair_kernel(const Pair p, const F f) {
  for_each_unit(p.to, p.s, p.d / N, [&](int64_t i, int64_t batch, int64_t head, int64_t unit) {
    const int64_t at = p.to.offset(i, batch, head) + unit * N;
    float dst[N] = {}, src[N];
    if constexpr (F::kReadsDst) p.dst.read(dst, at);
    p.src.read(src, p.from.offset(i, batch, head) + unit * N);
    f(dst, src, i, batch, head);
    p.dst.write(at, dst);
  });
}

template <class F>
void launch(const HeadsView& dst, const ConstHeadsView& src, const char* who, const F& f,
            Stream stream) {
  if (dst.s * dst.b * dst.heads * dst.d == 0) return;
  expect_floating(dst.dtype, who);
  expect_floating(src.dtype, who);
  const Pair pair{
      {dst.data, dst.dtype}, {src.data, src.dtype}, layout_of(dst), layout_of(src), dst.s, dst.d};
  const auto run = [&]<int N>() {
    const TokenGrid grid = grid_of_tokens(dst.s * dst.b, dst.heads * (dst.d / N));
    pair_kernel<N><<<grid.blocks, grid.threads, 0, native(stream)>>>(pair, f);
    MG_CUDA(cudaGetLastError());
  };
  const bool is_wide = dst.d % kVector == 0 && heads_are_aligned(dst, sizeof(uint4)) &&
                       heads_are_aligned(src, sizeof(uint4));
  is_wide ? run.template operator()<kVector>() : run.template operator()<1>();
}

struct Convert {
  static constexpr bool kReadsDst = false;
  template <int N>
  __device__ void operator()(float (&dst)[N], const float (&src)[N], int64_t, int64_t,
                             int64_t) const {
#pragma unroll
    for (int c = 0; c < N; ++c) dst[c] = src[c];
  }
};

struct Add {
  static constexpr bool kReadsDst = true;
  template <int N>
  __device__ void operator()(float (&dst)[N], const float (&src)[N], int64_t, int64_t,
                             int64_t) const {
#pragma unroll
    for (int c = 0; c < N; ++c) dst[c] += src[c];
  }
};

struct Merge {
  static constexpr bool kReadsDst = true;
  const float* lse;
  const float* part_lse;
  int64_t s, heads;

  template <int N>
  __device__ void operator()(float (&dst)[N], const float (&src)[N], int64_t i, int64_t batch,
                             int64_t head) const {
    const int64_t at = (batch * heads + head) * s + i;
    const MergedQuery merged(lse[at], part_lse[at]);
#pragma unroll
    for (int c = 0; c < N; ++c) dst[c] = merged.own * dst[c] + merged.other * src[c];
  }
};

// After Merge, whose threads all read the old values.
struct MergeLse {
  float* lse;
  const float* part_lse;

  template <int N>
  __device__ void run(int64_t at) const {
#pragma unroll
    for (int i = 0; i < N; ++i) lse[at + i] = MergedQuery(lse[at + i], part_lse[at + i]).lse;
  }
};

}  // namespace

void convert_heads(const HeadsView& dst, const ConstHeadsView& src, Stream stream) {
  launch(dst, src, "convert_heads", Convert{}, stream);
}

void add_heads(const HeadsView& dst, const ConstHeadsView& src, Stream stream) {
  launch(dst, src, "add_heads", Add{}, stream);
}

void merge_attention(const HeadsView& out, TensorView lse, const ConstHeadsView& part,
                     ConstView part_lse, Stream stream) {
  const auto* const other = part_lse.as<float>();
  launch(out, part, "merge_attention", Merge{lse.as<float>(), other, out.s, out.heads}, stream);
  for_each_element(lse.numel(), false, MergeLse{lse.as<float>(), other}, stream);
}

}  // namespace megatron::kernels::cuda

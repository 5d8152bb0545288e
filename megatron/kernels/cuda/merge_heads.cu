#include "megatron/kernels/cuda/heads.cuh"
#include "megatron/kernels/cuda/launch.cuh"
#include "megatron/kernels/merge_heads.h"

namespace megatron::kernels::cuda {
namespace {

// Output and inputs of a kernel over heads, with their layouts.
struct MergeOperands {
  AnyOutput dst;
  AnyInput a, b;
  HeadsLayout to, layout_a, layout_b;
  int64_t s, d;
};

// Calls f(a, b, i, batch, head), arrays of N floats, and stores a. Without F::kReadsBoth there is
// no b.
template <int N, class F>
__global__ void __launch_bounds__(kThreads) heads_kernel(const MergeOperands t, const F f) {
  for_each_unit(t.to, t.s, t.d / N, [&](int64_t i, int64_t batch, int64_t head, int64_t unit) {
    float a[N], b[N] = {};
    t.a.read(a, t.layout_a.offset(i, batch, head) + unit * N);
    if constexpr (F::kReadsBoth) t.b.read(b, t.layout_b.offset(i, batch, head) + unit * N);
    f(a, b, i, batch, head);
    t.dst.write(t.to.offset(i, batch, head) + unit * N, a);
  });
}

template <class F>
void launch(const HeadsView& dst, const ConstHeadsView& a, const ConstHeadsView& b, const char* who,
            const F& f, Stream stream) {
  if (dst.s * dst.b * dst.heads * dst.d == 0) return;
  for (const DType dtype : {dst.dtype, a.dtype, b.dtype}) expect_floating(dtype, who);
  const MergeOperands operands{{dst.data, dst.dtype},
                               {a.data, a.dtype},
                               {b.data, b.dtype},
                               layout_of(dst),
                               layout_of(a),
                               layout_of(b),
                               dst.s,
                               dst.d};
  const auto run = [&]<int N>() {
    const TokenGrid grid = grid_of_tokens(dst.s * dst.b, dst.heads * (dst.d / N));
    heads_kernel<N><<<grid.blocks, grid.threads, 0, native(stream)>>>(operands, f);
    MG_CUDA(cudaGetLastError());
  };
  const bool is_wide = dst.d % kVector == 0 && heads_are_aligned(dst, sizeof(uint4)) &&
                       heads_are_aligned(a, sizeof(uint4)) && heads_are_aligned(b, sizeof(uint4));
  is_wide ? run.template operator()<kVector>() : run.template operator()<1>();
}

struct Convert {
  static constexpr bool kReadsBoth = false;
  template <int N>
  __device__ void operator()(float (&)[N], const float (&)[N], int64_t, int64_t, int64_t) const {}
};

struct Add {
  static constexpr bool kReadsBoth = true;
  template <int N>
  __device__ void operator()(float (&a)[N], const float (&b)[N], int64_t, int64_t, int64_t) const {
#pragma unroll
    for (int c = 0; c < N; ++c) a[c] += b[c];
  }
};

// The log-sum-exps of the two operands of a merge.
struct MergedRows {
  float* lse;  // of the first query
  const float* part_lse;
  int64_t s, length;  // queries of a row of part_lse, and of lse

  __device__ MergedQuery merged(int64_t row, int64_t i) const {
    return {lse[row * length + i], part_lse[row * s + i]};
  }
};

struct Merge {
  static constexpr bool kReadsBoth = true;
  MergedRows rows;
  int64_t heads;

  template <int N>
  __device__ void operator()(float (&a)[N], const float (&b)[N], int64_t i, int64_t batch,
                             int64_t head) const {
    const MergedQuery query = rows.merged(batch * heads + head, i);
#pragma unroll
    for (int c = 0; c < N; ++c) a[c] = query.own * a[c] + query.other * b[c];
  }
};

// After Merge, whose threads all read the old values.
struct MergeLse {
  MergedRows rows;

  template <int N>
  __device__ void run(int64_t at) const {
#pragma unroll
    for (int64_t n = at; n < at + N; ++n) {
      const int64_t row = n / rows.s;
      const int64_t i = n - row * rows.s;
      rows.lse[row * rows.length + i] = rows.merged(row, i).lse;
    }
  }
};

}  // namespace

void convert_heads(const HeadsView& dst, const ConstHeadsView& src, Stream stream) {
  launch(dst, src, src, "convert_heads", Convert{}, stream);
}

void add_heads(const HeadsView& dst, const ConstHeadsView& a, const ConstHeadsView& b,
               Stream stream) {
  launch(dst, a, b, "add_heads", Add{}, stream);
}

void merge_attention(const HeadsView& out, TensorView lse, int64_t first_query,
                     const ConstHeadsView& own, const ConstHeadsView& part, ConstView part_lse,
                     Stream stream) {
  const MergedRows rows{lse.as<float>() + first_query, part_lse.as<float>(), out.s, lse.size(2)};
  launch(out, own, part, "merge_attention", Merge{rows, out.heads}, stream);
  for_each_element(part_lse.numel(), false, MergeLse{rows}, stream);
}

}  // namespace megatron::kernels::cuda

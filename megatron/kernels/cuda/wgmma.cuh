#pragma once

#include <cuda.h>

#include <cstdint>
#include <type_traits>

#include "megatron/core/float8.h"
#include "megatron/kernels/cuda/matrix_descriptor.cuh"
#include "megatron/kernels/cuda/mma.cuh"

// Warpgroup matrix products (wgmma) with operands in shared memory (matrix_descriptor.cuh), tile
// copies by the tensor memory accelerator (TMA), and register reallocation between warpgroups:
// compute capability 9.0a. All 128 threads of a warpgroup call the functions of this file together,
// unless a comment says otherwise.
//
// Accumulators of 64 rows: warp w of the group has rows 16 w .. 16 w + 15, in the layout of
// mma.cuh. Left operands in registers have the same layout.
namespace megatron::kernels::cuda {

inline constexpr int kWarpgroup = 128;  // threads

// --- Products ---

// Orders register writes before the next product; required before the first product that reads
// them.
__device__ __forceinline__ void wgmma_fence() {
  asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
}
// Commits the preceding products as a group.
__device__ __forceinline__ void wgmma_commit() {
  asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}
// Waits until at most kGroups committed groups are pending.
template <int kGroups>
__device__ __forceinline__ void wgmma_wait() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(kGroups) : "memory");
}
// Proxy fence: makes this thread's stores to shared memory visible to later products and bulk
// copies. A barrier of readers and writers must follow.
__device__ __forceinline__ void fence_shared() {
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}
// A barrier of kThreads threads of the block; barrier 0 is __syncthreads().
template <int kThreads>
__device__ __forceinline__ void named_barrier(int barrier) {
  asm volatile("bar.sync %0, %1;" ::"r"(barrier), "n"(kThreads) : "memory");
}
// Compiler fence for accumulator registers of asynchronous products: no access moves across it.
template <int kTiles>
__device__ __forceinline__ void fence_operand(float (&sums)[kTiles][4]) {
#pragma unroll
  for (int t = 0; t < kTiles; ++t) {
#pragma unroll
    for (int i = 0; i < 4; ++i) asm volatile("" : "+f"(sums[t][i])::"memory");
  }
}

#define MG_SUMS_2(c, t)                                                                    \
  "+f"((c)[t][0]), "+f"((c)[t][1]), "+f"((c)[t][2]), "+f"((c)[t][3]), "+f"((c)[t + 1][0]), \
      "+f"((c)[t + 1][1]), "+f"((c)[t + 1][2]), "+f"((c)[t + 1][3])
#define MG_SUMS_8(c, t) \
  MG_SUMS_2(c, t), MG_SUMS_2(c, t + 2), MG_SUMS_2(c, t + 4), MG_SUMS_2(c, t + 6)
#define MG_SUMS_4(c) MG_SUMS_2(c, 0), MG_SUMS_2(c, 2)
#define MG_LIST_16 "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15}"
#define MG_LIST_32                                                              \
  "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16," \
  "%17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31}"
#define MG_LIST_64                                                              \
  "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16," \
  "%17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31,"  \
  "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46,"  \
  "%47, %48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61,"  \
  "%62, %63}"
#define MG_LIST_128                                                                             \
  "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15,"                      \
  "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31,"             \
  "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47,"             \
  "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63,"             \
  "%64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79,"             \
  "%80, %81, %82, %83, %84, %85, %86, %87, %88, %89, %90, %91, %92, %93, %94, %95,"             \
  "%96, %97, %98, %99, %100, %101, %102, %103, %104, %105, %106, %107, %108, %109, %110, %111," \
  "%112, %113, %114, %115, %116, %117, %118, %119, %120, %121, %122, %123, %124, %125, %126, "  \
  "%127}"
// Both operands in shared memory: A, B, ADDS, and flags for MN-major layouts.
#define MG_WGMMA_SHARED(N, TYPE, LIST, A, B, ADDS, LEFT, RIGHT)                        \
  "{\n.reg .pred p;\nsetp.ne.b32 p, " ADDS ", 0;\nwgmma.mma_async.sync.aligned.m64n" N \
  "k16.f32." TYPE "." TYPE " " LIST ", " A ", " B ", p, 1, 1, " LEFT ", " RIGHT ";\n}"
// Both operands in shared memory, in FP8, the right one in E4M3.
#define MG_WGMMA_FP8(N, LEFT, LIST, A, B, ADDS)                                        \
  "{\n.reg .pred p;\nsetp.ne.b32 p, " ADDS ", 0;\nwgmma.mma_async.sync.aligned.m64n" N \
  "k32.f32." LEFT ".e4m3 " LIST ", " A ", " B ", p, 1, 1;\n}"
// The left operand in registers A.
#define MG_WGMMA_LEFT(N, TYPE, LIST, A, B, ADDS, RIGHT)                                \
  "{\n.reg .pred p;\nsetp.ne.b32 p, " ADDS ", 0;\nwgmma.mma_async.sync.aligned.m64n" N \
  "k16.f32." TYPE "." TYPE " " LIST ", " A ", " B ", p, 1, 1, " RIGHT ";\n}"

// sums = a b, or sums += a b if `adds`; 16 deep. kLeftIsMnMajor and kRightIsMnMajor: a and b come
// from mn_major_matrix(), otherwise from k_major_matrix().
template <class T, bool kLeftIsMnMajor, bool kRightIsMnMajor, int kTiles>
__device__ __forceinline__ void wgmma(float (&sums)[kTiles][4], MatrixDescriptor a,
                                      MatrixDescriptor b, bool adds) {
  static_assert(kTiles == 4 || kTiles == 8 || kTiles == 16 || kTiles == 32);
  constexpr bool kIsBFloat16 = std::is_same_v<T, BFloat16>;
  const auto add = static_cast<int>(adds);
  if constexpr (kTiles == 4 && kIsBFloat16) {
    asm volatile(MG_WGMMA_SHARED("32", "bf16", MG_LIST_16, "%16", "%17", "%18", "%19", "%20")
                 : MG_SUMS_4(sums)
                 : "l"(a.bits()), "l"(b.bits()), "r"(add), "n"(int{kLeftIsMnMajor}),
                   "n"(int{kRightIsMnMajor}));
  } else if constexpr (kTiles == 4) {
    asm volatile(MG_WGMMA_SHARED("32", "f16", MG_LIST_16, "%16", "%17", "%18", "%19", "%20")
                 : MG_SUMS_4(sums)
                 : "l"(a.bits()), "l"(b.bits()), "r"(add), "n"(int{kLeftIsMnMajor}),
                   "n"(int{kRightIsMnMajor}));
  } else if constexpr (kTiles == 8 && kIsBFloat16) {
    asm volatile(MG_WGMMA_SHARED("64", "bf16", MG_LIST_32, "%32", "%33", "%34", "%35", "%36")
                 : MG_SUMS_8(sums, 0)
                 : "l"(a.bits()), "l"(b.bits()), "r"(add), "n"(int{kLeftIsMnMajor}),
                   "n"(int{kRightIsMnMajor}));
  } else if constexpr (kTiles == 8) {
    asm volatile(MG_WGMMA_SHARED("64", "f16", MG_LIST_32, "%32", "%33", "%34", "%35", "%36")
                 : MG_SUMS_8(sums, 0)
                 : "l"(a.bits()), "l"(b.bits()), "r"(add), "n"(int{kLeftIsMnMajor}),
                   "n"(int{kRightIsMnMajor}));
  } else if constexpr (kTiles == 32 && kIsBFloat16) {
    asm volatile(MG_WGMMA_SHARED("256", "bf16", MG_LIST_128, "%128", "%129", "%130", "%131", "%132")
                 : MG_SUMS_8(sums, 0), MG_SUMS_8(sums, 8), MG_SUMS_8(sums, 16), MG_SUMS_8(sums, 24)
                 : "l"(a.bits()), "l"(b.bits()), "r"(add), "n"(int{kLeftIsMnMajor}),
                   "n"(int{kRightIsMnMajor}));
  } else if constexpr (kTiles == 32) {
    asm volatile(MG_WGMMA_SHARED("256", "f16", MG_LIST_128, "%128", "%129", "%130", "%131", "%132")
                 : MG_SUMS_8(sums, 0), MG_SUMS_8(sums, 8), MG_SUMS_8(sums, 16), MG_SUMS_8(sums, 24)
                 : "l"(a.bits()), "l"(b.bits()), "r"(add), "n"(int{kLeftIsMnMajor}),
                   "n"(int{kRightIsMnMajor}));
  } else if constexpr (kIsBFloat16) {
    asm volatile(MG_WGMMA_SHARED("128", "bf16", MG_LIST_64, "%64", "%65", "%66", "%67", "%68")
                 : MG_SUMS_8(sums, 0), MG_SUMS_8(sums, 8)
                 : "l"(a.bits()), "l"(b.bits()), "r"(add), "n"(int{kLeftIsMnMajor}),
                   "n"(int{kRightIsMnMajor}));
  } else {
    asm volatile(MG_WGMMA_SHARED("128", "f16", MG_LIST_64, "%64", "%65", "%66", "%67", "%68")
                 : MG_SUMS_8(sums, 0), MG_SUMS_8(sums, 8)
                 : "l"(a.bits()), "l"(b.bits()), "r"(add), "n"(int{kLeftIsMnMajor}),
                   "n"(int{kRightIsMnMajor}));
  }
}

// sums += a b with a in registers.
template <class T, bool kRightIsMnMajor, int kTiles>
__device__ __forceinline__ void wgmma(float (&sums)[kTiles][4], const uint32_t (&a)[4],
                                      MatrixDescriptor b) {
  static_assert(kTiles == 8 || kTiles == 16);
  constexpr bool kIsBFloat16 = std::is_same_v<T, BFloat16>;
  if constexpr (kTiles == 8 && kIsBFloat16) {
    asm volatile(
        MG_WGMMA_LEFT("64", "bf16", MG_LIST_32, "{%32, %33, %34, %35}", "%36", "%37", "%38")
        : MG_SUMS_8(sums, 0)
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b.bits()), "r"(1),
          "n"(int{kRightIsMnMajor}));
  } else if constexpr (kTiles == 8) {
    asm volatile(MG_WGMMA_LEFT("64", "f16", MG_LIST_32, "{%32, %33, %34, %35}", "%36", "%37", "%38")
                 : MG_SUMS_8(sums, 0)
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b.bits()), "r"(1),
                   "n"(int{kRightIsMnMajor}));
  } else if constexpr (kIsBFloat16) {
    asm volatile(
        MG_WGMMA_LEFT("128", "bf16", MG_LIST_64, "{%64, %65, %66, %67}", "%68", "%69", "%70")
        : MG_SUMS_8(sums, 0), MG_SUMS_8(sums, 8)
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b.bits()), "r"(1),
          "n"(int{kRightIsMnMajor}));
  } else {
    asm volatile(
        MG_WGMMA_LEFT("128", "f16", MG_LIST_64, "{%64, %65, %66, %67}", "%68", "%69", "%70")
        : MG_SUMS_8(sums, 0), MG_SUMS_8(sums, 8)
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b.bits()), "r"(1),
          "n"(int{kRightIsMnMajor}));
  }
}

// sums = a b, or sums += a b if `adds`, of elements in FP8; 32 deep. Both come from
// k_major_matrix(), as if two elements were one of 16 bits. Tensor cores keep about 14 bits of
// sums.
template <class Left>
__device__ __forceinline__ void wgmma_fp8(float (&sums)[16][4], MatrixDescriptor a,
                                          MatrixDescriptor b, bool adds) {
  const auto add = static_cast<int>(adds);
  if constexpr (std::is_same_v<Left, Float8E5M2>) {
    asm volatile(MG_WGMMA_FP8("128", "e5m2", MG_LIST_64, "%64", "%65", "%66")
                 : MG_SUMS_8(sums, 0), MG_SUMS_8(sums, 8)
                 : "l"(a.bits()), "l"(b.bits()), "r"(add));
  } else {
    static_assert(std::is_same_v<Left, Float8E4M3>);
    asm volatile(MG_WGMMA_FP8("128", "e4m3", MG_LIST_64, "%64", "%65", "%66")
                 : MG_SUMS_8(sums, 0), MG_SUMS_8(sums, 8)
                 : "l"(a.bits()), "l"(b.bits()), "r"(add));
  }
}

#undef MG_SUMS_2
#undef MG_SUMS_8
#undef MG_SUMS_4
#undef MG_LIST_16
#undef MG_LIST_32
#undef MG_LIST_64
#undef MG_LIST_128
#undef MG_WGMMA_SHARED
#undef MG_WGMMA_FP8
#undef MG_WGMMA_LEFT

// --- Registers ---

// Raises, or lowers, the register budget of the calling warpgroup to kRegisters a thread
// (setmaxnreg).
template <int kRegisters>
__device__ __forceinline__ void alloc_registers() {
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(kRegisters));
}
template <int kRegisters>
__device__ __forceinline__ void dealloc_registers() {
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(kRegisters));
}

// --- Shared memory ---

// The block's dynamic shared memory. Any thread may call it.
__device__ __forceinline__ unsigned char* dynamic_shared_memory() {
  extern __shared__ unsigned char memory[];
  return memory;
}
// Stores a word at an address in shared memory. Any thread may call it.
__device__ __forceinline__ void store_shared(uint32_t to, uint32_t word) {
  asm volatile("st.shared.b32 [%0], %1;" ::"r"(to), "r"(word) : "memory");
}

// Vector reduction (red) into four floats in global memory, without waiting. A load after the next
// barrier may miss it; a thread that acquires a value stored by store_release() (mma.cuh) after a
// barrier sees it. Any thread may call it.
__device__ __forceinline__ void add_to_global(float4* to, const float (&x)[4]) {
  asm volatile("red.global.add.v4.f32 [%0], {%1, %2, %3, %4};" ::"l"(__cvta_generic_to_global(to)),
               "f"(x[0]), "f"(x[1]), "f"(x[2]), "f"(x[3])
               : "memory");
}

// The same for two floats.
__device__ __forceinline__ void add_to_global(float2* to, const float (&x)[2]) {
  asm volatile("red.global.add.v2.f32 [%0], {%1, %2};" ::"l"(__cvta_generic_to_global(to)),
               "f"(x[0]), "f"(x[1])
               : "memory");
}

// The same for eight 16-bit floats, each sum rounded to nearest even.
__device__ __forceinline__ void add_to_global(BFloat16* to, const uint4& x) {
  asm volatile(
      "red.global.add.noftz.v4.bf16x2 [%0], {%1, %2, %3, %4};" ::"l"(__cvta_generic_to_global(to)),
      "r"(x.x), "r"(x.y), "r"(x.z), "r"(x.w)
      : "memory");
}
__device__ __forceinline__ void add_to_global(Float16* to, const uint4& x) {
  asm volatile(
      "red.global.add.noftz.v4.f16x2 [%0], {%1, %2, %3, %4};" ::"l"(__cvta_generic_to_global(to)),
      "r"(x.x), "r"(x.y), "r"(x.z), "r"(x.w)
      : "memory");
}

// TMA load of a tile from row `row` of a head of a sample on, channels [channel, channel + 64),
// zero outside of the head, through a map of tensor_map.h. The barrier counts the bytes of a whole
// tile. One thread calls it.
__device__ __forceinline__ void copy_tile(uint32_t to, const CUtensorMap& map, uint32_t barrier,
                                          int channel, int row, int head, int group, int batch) {
  asm volatile(
      "cp.async.bulk.tensor.5d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%3, "
      "%4, %5, %6, %7}], [%2];" ::"r"(to),
      "l"(&map), "r"(barrier), "r"(channel), "r"(row), "r"(head), "r"(group), "r"(batch)
      : "memory");
}

}  // namespace megatron::kernels::cuda

#pragma once

#include <cstdint>

#include "megatron/kernels/cuda/vector.cuh"

// The instructions of tensor cores and of asynchronous copies, one function each. All lanes of a
// warp call the tensor-core functions together. With g = lane / 4 and c = lane % 4, a lane holds
//
//   of a  [16 rows, 16 deep]  a[0], a[1]: rows g, g + 8, depths 2 c, 2 c + 1; a[2], a[3]: 8 deeper
//   of b  [16 deep, 8 cols]   b0: depths 2 c, 2 c + 1, column g; b1: 8 deeper
//   of c  [16 rows, 8 cols]   c[0], c[1]: row g, columns 2 c, 2 c + 1; c[2], c[3]: row g + 8
//
// (PTX ISA, mma.m16n8k16).
namespace megatron::kernels::cuda {

// c += a b.
template <class T>
__device__ __forceinline__ void multiply_add(float (&c)[4], const uint32_t (&a)[4], uint32_t b0,
                                             uint32_t b1);
template <>
__device__ __forceinline__ void multiply_add<BFloat16>(float (&c)[4], const uint32_t (&a)[4],
                                                       uint32_t b0, uint32_t b1) {
  asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
      "{%8, %9}, {%0, %1, %2, %3};"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}
template <>
__device__ __forceinline__ void multiply_add<Float16>(float (&c)[4], const uint32_t (&a)[4],
                                                      uint32_t b0, uint32_t b1) {
  asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
      "{%8, %9}, {%0, %1, %2, %3};"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

__device__ __forceinline__ uint32_t shared_address(const void* p) {
  return static_cast<uint32_t>(__cvta_generic_to_shared(p));
}

// Four matrices of 8 x 8 elements of 16 bits in shared memory, the rows of matrix i at the pointers
// of lanes 8 i .. 8 i + 7, multiples of 16 bytes: x[i] is row g, columns 2 c and 2 c + 1.
__device__ __forceinline__ void load_matrices(uint32_t (&x)[4], const void* row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(x[0]), "=r"(x[1]), "=r"(x[2]), "=r"(x[3])
               : "r"(shared_address(row)));
}
// The same, transposed: x[i] is rows 2 c and 2 c + 1, column g.
__device__ __forceinline__ void load_matrices_transposed(uint32_t (&x)[4], const void* row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(x[0]), "=r"(x[1]), "=r"(x[2]), "=r"(x[3])
               : "r"(shared_address(row)));
}

// The transposed matrix of 8 x 8 elements of 16 bits whose row g, columns 2 c and 2 c + 1, is x.
__device__ __forceinline__ uint32_t transposed_matrix(uint32_t x) {
  uint32_t y;
  asm volatile("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;" : "=r"(y) : "r"(x));
  return y;
}

// Starts copying 16 bytes, or 8, to shared memory. Outside it writes zeros and reads nothing.
__device__ __forceinline__ void copy_async_16(void* to, const void* from, bool is_inside) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(shared_address(to)),
               "l"(__cvta_generic_to_global(from)), "r"(is_inside ? 16 : 0)
               : "memory");
}
__device__ __forceinline__ void copy_async_8(void* to, const void* from, bool is_inside) {
  asm volatile("cp.async.ca.shared.global [%0], [%1], 8, %2;" ::"r"(shared_address(to)),
               "l"(__cvta_generic_to_global(from)), "r"(is_inside ? 8 : 0)
               : "memory");
}
__device__ __forceinline__ void copy_async_4(void* to, const void* from, bool is_inside) {
  asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;" ::"r"(shared_address(to)),
               "l"(__cvta_generic_to_global(from)), "r"(is_inside ? 4 : 0)
               : "memory");
}
// Waits for all copies of this thread; a barrier then shows them to the other threads.
__device__ __forceinline__ void wait_for_copies() {
  asm volatile("cp.async.wait_all;" ::: "memory");
}

// Commits this thread's copies as a group; wait_for_copies_before<N>() waits until at most N groups
// are pending.
__device__ __forceinline__ void end_batch_of_copies() {
  asm volatile("cp.async.commit_group;" ::: "memory");
}
template <int N>
__device__ __forceinline__ void wait_for_copies_before() {
  asm volatile("cp.async.wait_group %0;" ::"n"(N) : "memory");
}

// 2^x, and 0 for -infinity; relative error 2^-22.
__device__ __forceinline__ float exp2_fast(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

// Rounds and packs two elements, the first in the lower half.
template <class T>
__device__ __forceinline__ uint32_t pack_two(float first, float second);
template <>
__device__ __forceinline__ uint32_t pack_two<BFloat16>(float first, float second) {
  uint32_t two;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(two) : "f"(second), "f"(first));
  return two;
}
template <>
__device__ __forceinline__ uint32_t pack_two<Float16>(float first, float second) {
  uint32_t two;
  asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(two) : "f"(second), "f"(first));
  return two;
}

// Unsigned maximum of each half (compute capability 9.0).
__device__ __forceinline__ uint32_t max_of_halves(uint32_t a, uint32_t b) {
  uint32_t both;
  asm("max.u16x2 %0, %1, %2;" : "=r"(both) : "r"(a), "r"(b));
  return both;
}
// Fills the lower half of the result with the highest bit of a's selected half, the upper half with
// that of b's.
template <bool kUpper>
__device__ __forceinline__ uint32_t spread_highest_bits(uint32_t a, uint32_t b) {
  uint32_t both;
  asm("prmt.b32 %0, %1, %2, %3;" : "=r"(both) : "r"(a), "r"(b), "n"(kUpper ? 0xFFBB : 0xDD99));
  return both;
}

// Release-acquire synchronization of blocks through a counter in global memory. A block writes its
// results and passes a barrier; then one of its threads calls store_release(). After a thread of
// another block has acquired that value, its block sees the results after the next barrier.
__device__ __forceinline__ int load_acquire(const int* counter) {
  int value;
  asm volatile("ld.acquire.gpu.global.b32 %0, [%1];"
               : "=r"(value)
               : "l"(__cvta_generic_to_global(counter))
               : "memory");
  return value;
}
__device__ __forceinline__ void store_release(int* counter, int value) {
  asm volatile("st.release.gpu.global.b32 [%0], %1;" ::"l"(__cvta_generic_to_global(counter)),
               "r"(value)
               : "memory");
}

}  // namespace megatron::kernels::cuda

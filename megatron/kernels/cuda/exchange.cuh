#pragma once

#include <cstdint>

// Vectors that the blocks of a kernel write for each other in global memory. Each 4 bytes of data
// have a tag beside them, written and read together, so that who reads the tag it expects has the
// data, too: no barrier and no fence are needed (as in the protocol "LL" of NCCL). REQUIRES: a tag
// is used once, and nobody writes a place again before all have read it.
namespace megatron::kernels::cuda {

struct Message {
  uint32_t data, tag;
};
// Two of them are read and written at once.
struct alignas(16) MessagePair {
  Message first, second;
};

__device__ __forceinline__ void send(Message* to, uint32_t data, uint32_t tag) {
  asm volatile("st.volatile.global.v2.u32 [%0], {%1, %2};" ::"l"(__cvta_generic_to_global(to)),
               "r"(data), "r"(tag)
               : "memory");
}
__device__ __forceinline__ void send(MessagePair* to, uint32_t first, uint32_t second,
                                     uint32_t tag) {
  asm volatile(
      "st.volatile.global.v4.u32 [%0], {%1, %2, %3, %2};" ::"l"(__cvta_generic_to_global(to)),
      "r"(first), "r"(tag), "r"(second)
      : "memory");
}
__device__ __forceinline__ MessagePair look(const MessagePair* from) {
  MessagePair pair;
  asm volatile("ld.volatile.global.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(pair.first.data), "=r"(pair.first.tag), "=r"(pair.second.data),
                 "=r"(pair.second.tag)
               : "l"(__cvta_generic_to_global(from))
               : "memory");
  return pair;
}
__device__ __forceinline__ bool has_come(const MessagePair& pair, uint32_t tag) {
  return pair.first.tag == tag && pair.second.tag == tag;
}
__device__ __forceinline__ MessagePair receive(const MessagePair* from, uint32_t tag) {
  MessagePair pair = look(from);
  while (!has_come(pair, tag)) pair = look(from);
  return pair;
}
// The pairs from[thread], from[thread + threads], .. below `count`, given to f(index, pair). All
// are asked for before the first is waited for.
template <int kAtOnce, class F>
__device__ __forceinline__ void receive_all(const MessagePair* from, int count, uint32_t tag,
                                            int thread, int threads, const F& f) {
  for (int begin = thread; begin < count; begin += kAtOnce * threads) {
    MessagePair pairs[kAtOnce];
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) {
      if (begin + i * threads < count) pairs[i] = look(from + begin + i * threads);
    }
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) {
      const int index = begin + i * threads;
      if (index >= count) break;
      if (!has_come(pairs[i], tag)) pairs[i] = receive(from + index, tag);
      f(index, pairs[i]);
    }
  }
}

}  // namespace megatron::kernels::cuda

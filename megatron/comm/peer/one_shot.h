#pragma once

#include <cuda_runtime_api.h>

#include <array>
#include <cstddef>
#include <cstdint>

#include "megatron/comm/call.h"

// Collectives as a single kernel on each GPU of a host, without host synchronization, so that a
// CUDA graph can contain them. Fast for small data; they occupy multiprocessors while they wait.
//
// A small sum writes its input, with a flag in each word, to the memory of each other member (as
// NCCL's LL protocol). Otherwise a kernel copies its input to memory that the others can read,
// signals them, waits for their signals, and reads theirs.
//
// A member that waits a minute for another's kernel fails with a device error.
namespace megatron::comm::peer {

inline constexpr int kMaxOneShotMembers = 8;

// Kernel argument describing a group. All members make the calls of a group in the same order, on
// one stream each, and have different GPUs.
struct OneShotGroup {
  // one_shot_bytes(size) of each member's memory, initially zero, accessible to the GPUs of all
  // members.
  std::array<std::byte*, kMaxOneShotMembers> memory{};
  // Set by the host to release all waiting kernels after a member has failed; their results are
  // then invalid. Null: never set.
  const uint64_t* stop = nullptr;
  int size = 0;
  int rank = 0;
};
int64_t one_shot_bytes(int size);

// out := the sum or the maximum of all members' in, in the order and with the bits of
// reduce_in_order() (sum.h). out == in is allowed. Throws DtypeError for a dtype without sums.
void one_shot_all_reduce(void* out, const void* in, int64_t count, DType dtype, Reduce op,
                         const OneShotGroup& group, cudaStream_t stream);
// out := the members' in, concatenated; `in` may be this member's part of out.
void one_shot_all_gather(void* out, const void* in, int64_t bytes, const OneShotGroup& group,
                         cudaStream_t stream);

}  // namespace megatron::comm::peer

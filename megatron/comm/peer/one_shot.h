#pragma once

#include <cuda_runtime_api.h>

#include <array>
#include <cstddef>
#include <cstdint>

#include "megatron/comm/call.h"

// Collectives as one kernel each, which GPUs of one host run together without their hosts: what a
// CUDA graph can hold. They are quick for small data, and keep multiprocessors busy while they
// wait.
//
// A small sum writes its input to the memory of each other member, together with a number that
// tells that it is there (the words of NCCL's protocol LL). Otherwise a kernel copies its input to
// memory that the others read, tells them so, waits for theirs, and reads it.
//
// A member that waits a minute for another's kernel ends its program with an error of the device.
namespace megatron::comm::peer {

inline constexpr int kMaxOneShotMembers = 8;

// A group as its kernels see it. The calls of a group are in the same order on all members, on one
// stream each. Members have different GPUs.
struct OneShotGroup {
  // Of each member one_shot_bytes(size), zeros at first, which the GPUs of all members can access.
  std::array<std::byte*, kMaxOneShotMembers> memory{};
  // Where the host writes that no kernel waits any more, because a member has failed; what they
  // compute is then lost. Null if it never does.
  const uint64_t* stop = nullptr;
  int size = 0;
  int rank = 0;
};
int64_t one_shot_bytes(int size);

// out := the sum or the maximum of all members' in, in the order and with the bits of
// reduce_in_order() (sum.h). out == in is allowed. Throws DtypeError for a dtype without sums.
void one_shot_all_reduce(void* out, const void* in, int64_t count, DType dtype, Reduce op,
                         const OneShotGroup& group, cudaStream_t stream);
// out := the members' in, one after the other; `in` may be this member's part of out.
void one_shot_all_gather(void* out, const void* in, int64_t bytes, const OneShotGroup& group,
                         cudaStream_t stream);

}  // namespace megatron::comm::peer

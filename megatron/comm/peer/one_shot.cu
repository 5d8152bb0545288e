#include <algorithm>
#include <string>

#include "megatron/comm/peer/element.cuh"
#include "megatron/comm/peer/one_shot.h"
#include "megatron/core/error.h"
#include "megatron/device/cuda/check.h"

namespace megatron::comm::peer {
namespace {

constexpr int kThreads = 256;
constexpr int kMaxBlocks = 64;
constexpr int64_t kBlockBytes = 16 * 1024;  // of a slot
constexpr int64_t kLeastBytes = 4 * 1024;   // worth a block
constexpr int kVectorBytes = 16;
constexpr uint64_t kPatience = 60'000'000'000;  // nanoseconds

using Flag = uint64_t;

// A member's memory. Block b of a kernel uses parts b alone, and so do the blocks b of the others,
// so each block is in step with those of its number.
//
// Data of round n lies in slot n % 2. A block fills it again in round n + 2, after the others have
// told that round n + 1 has begun there, where they have read all of round n.
struct Memory {
  Flag rounds[kMaxBlocks];                     // that the member's blocks have begun
  Flag flags[kMaxOneShotMembers][kMaxBlocks];  // the rounds that the others' data is of
  alignas(kVectorBytes) std::byte slots[2][kMaxBlocks][kBlockBytes];
};

struct Members {
  Memory* all[kMaxOneShotMembers];
  int size;
  int rank;
};

Members members_of(const OneShotGroup& group) {
  Members members{};
  for (int i = 0; i < group.size; ++i) {
    members.all[i] = reinterpret_cast<Memory*>(group.memory[static_cast<size_t>(i)]);
  }
  members.size = group.size;
  members.rank = group.rank;
  return members;
}

__device__ __forceinline__ uint64_t nanoseconds() {
  uint64_t time = 0;
  asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(time));
  return time;
}

__device__ __forceinline__ void store_release(Flag* flag, Flag value) {
  asm volatile("st.release.sys.global.u64 [%0], %1;" ::"l"(flag), "l"(value) : "memory");
}
__device__ __forceinline__ Flag load_acquire(const Flag* flag) {
  Flag value = 0;
  asm volatile("ld.acquire.sys.global.u64 %0, [%1];" : "=l"(value) : "l"(flag) : "memory");
  return value;
}

// Tells the others that this block's data of a round is complete, and waits for theirs. All threads
// of the block call it.
__device__ __forceinline__ void meet(const Members& members, Flag round) {
  __syncthreads();
  const int other = static_cast<int>(threadIdx.x);
  if (other < members.size && other != members.rank) {
    __threadfence_system();
    store_release(&members.all[other]->flags[members.rank][blockIdx.x], round);
    const Flag* const theirs = &members.all[members.rank]->flags[other][blockIdx.x];
    const uint64_t begin = nanoseconds();
    while (load_acquire(theirs) < round) {
      if (nanoseconds() - begin > kPatience) __trap();
    }
  }
  __syncthreads();
}

// Calls work(begin, count, slot) for this block's elements of each round, `slice` at most, when
// they are in the slots of all members.
template <class T, class Work>
__device__ __forceinline__ void in_rounds(const T* in, int64_t count, int64_t slice,
                                          const Members& members, const Work& work) {
  Memory& own = *members.all[members.rank];
  Flag round = own.rounds[blockIdx.x];
  const int64_t step = slice * gridDim.x;
  for (int64_t first = 0; first < count; first += step) {
    ++round;
    const int64_t begin = first + slice * blockIdx.x;
    const int64_t here = max(int64_t{0}, min(slice, count - begin));
    const int slot = static_cast<int>(round % 2);
    T* const data = reinterpret_cast<T*>(own.slots[slot][blockIdx.x]);
    for (int64_t i = threadIdx.x; i < here; i += kThreads) data[i] = in[begin + i];
    meet(members, round);
    work(begin, here, slot);
  }
  if (threadIdx.x == 0) own.rounds[blockIdx.x] = round;
}

template <size_t kBytes>
struct BitsOf;
template <>
struct BitsOf<1> {
  using Type = unsigned char;
};
template <>
struct BitsOf<2> {
  using Type = unsigned short;
};
template <>
struct BitsOf<4> {
  using Type = unsigned;
};
template <>
struct BitsOf<8> {
  using Type = unsigned long long;
};
template <>
struct BitsOf<16> {
  using Type = uint4;
};

// Element i of a member's data of this block; not from a cache, which could have an earlier round.
template <class T>
__device__ __forceinline__ T element(const Memory* member, int slot, int64_t i) {
  using Bits = typename BitsOf<sizeof(T)>::Type;
  const Bits bits = __ldcv(reinterpret_cast<const Bits*>(member->slots[slot][blockIdx.x]) + i);
  T value;
  memcpy(&value, &bits, sizeof(T));
  return value;
}

// N elements at once: 16 bytes, or one element.
template <class T, Reduce kOp, int N>
__global__ void __launch_bounds__(kThreads)
    all_reduce_kernel(Pack<T, N>* out, const Pack<T, N>* in, int64_t count, int64_t slice,
                      const __grid_constant__ Members members) {
  in_rounds(in, count, slice, members, [&](int64_t begin, int64_t here, int slot) {
    for (int64_t i = threadIdx.x; i < here; i += kThreads) {
      Pack<T, N> x[kMaxOneShotMembers];  // read before the first sum, to hide their latency
#pragma unroll
      for (int member = 0; member < kMaxOneShotMembers; ++member) {
        if (member < members.size) x[member] = element<Pack<T, N>>(members.all[member], slot, i);
      }
      SumOf<T> sum[N];
#pragma unroll
      for (int j = 0; j < N; ++j) sum[j] = widened(x[0].elements[j]);
#pragma unroll
      for (int member = 1; member < kMaxOneShotMembers; ++member) {
        if (member >= members.size) continue;
#pragma unroll
        for (int j = 0; j < N; ++j) {
          sum[j] = combined<kOp>(sum[j], widened(x[member].elements[j]));
        }
      }
      Pack<T, N> result;
#pragma unroll
      for (int j = 0; j < N; ++j) result.elements[j] = rounded<T>(sum[j]);
      out[begin + i] = result;
    }
  });
}

template <class T>
__global__ void __launch_bounds__(kThreads)
    all_gather_kernel(T* out, const T* in, int64_t count, int64_t slice,
                      const __grid_constant__ Members members) {
  in_rounds(in, count, slice, members, [&](int64_t begin, int64_t here, int slot) {
    for (int step = 0; step < members.size; ++step) {
      const int member = (members.rank + step) % members.size;  // not all read one member
      T* const part = out + member * count + begin;
      for (int64_t i = threadIdx.x; i < here; i += kThreads) {
        part[i] = element<T>(members.all[member], slot, i);
      }
    }
  });
}

// For `count` elements of `bytes` each: launch(blocks, slice).
template <class Launch>
void launch_for(int64_t count, int64_t bytes, const Launch& launch) {
  if (count == 0) return;
  const int64_t blocks =
      std::clamp<int64_t>((count * bytes + kLeastBytes - 1) / kLeastBytes, 1, kMaxBlocks);
  const int64_t slice = std::min((count + blocks - 1) / blocks, kBlockBytes / bytes);
  launch(static_cast<unsigned>(blocks), slice);
  MG_CUDA(cudaGetLastError());
}

bool is_aligned(const void* data) { return reinterpret_cast<uintptr_t>(data) % kVectorBytes == 0; }

template <class T, Reduce kOp, int N>
void reduce(void* out, const void* in, int64_t count, const Members& members, cudaStream_t stream) {
  launch_for(count / N, N * static_cast<int64_t>(sizeof(T)), [&](unsigned blocks, int64_t slice) {
    all_reduce_kernel<T, kOp, N><<<blocks, kThreads, 0, stream>>>(
        static_cast<Pack<T, N>*>(out), static_cast<const Pack<T, N>*>(in), count / N, slice,
        members);
  });
}

template <class T, Reduce kOp>
void reduce(void* out, const void* in, int64_t count, const Members& members, cudaStream_t stream) {
  constexpr int kVector = kVectorBytes / static_cast<int>(sizeof(T));
  if (is_aligned(out) && is_aligned(in) && count % kVector == 0) {
    reduce<T, kOp, kVector>(out, in, count, members, stream);
  } else {
    reduce<T, kOp, 1>(out, in, count, members, stream);
  }
}

template <class T>
void reduce(void* out, const void* in, int64_t count, Reduce op, const Members& members,
            cudaStream_t stream) {
  if (op == Reduce::kSum) {
    reduce<T, Reduce::kSum>(out, in, count, members, stream);
  } else {
    reduce<T, Reduce::kMax>(out, in, count, members, stream);
  }
}

template <class T>
void gather(void* out, const void* in, int64_t bytes, const Members& members, cudaStream_t stream) {
  constexpr auto kBytes = static_cast<int64_t>(sizeof(T));
  launch_for(bytes / kBytes, kBytes, [&](unsigned blocks, int64_t slice) {
    all_gather_kernel<T><<<blocks, kThreads, 0, stream>>>(
        static_cast<T*>(out), static_cast<const T*>(in), bytes / kBytes, slice, members);
  });
}

}  // namespace

int64_t one_shot_bytes() { return sizeof(Memory); }

void one_shot_all_reduce(void* out, const void* in, int64_t count, DType dtype, Reduce op,
                         const OneShotGroup& group, cudaStream_t stream) {
  const Members members = members_of(group);
  switch (dtype) {
    case DType::kFloat32:
      return reduce<float>(out, in, count, op, members, stream);
    case DType::kFloat16:
      return reduce<Float16>(out, in, count, op, members, stream);
    case DType::kBFloat16:
      return reduce<BFloat16>(out, in, count, op, members, stream);
    case DType::kFloat64:
      return reduce<double>(out, in, count, op, members, stream);
    case DType::kInt64:
      return reduce<int64_t>(out, in, count, op, members, stream);
    case DType::kInt32:
      return reduce<int32_t>(out, in, count, op, members, stream);
    default:
      throw DtypeError("elements of " + std::string(megatron::name_of(dtype)) +
                       " cannot be reduced");
  }
}

void one_shot_all_gather(void* out, const void* in, int64_t bytes, const OneShotGroup& group,
                         cudaStream_t stream) {
  const Members members = members_of(group);
  if (is_aligned(out) && is_aligned(in) && bytes % kVectorBytes == 0) {
    gather<uint4>(out, in, bytes, members, stream);
  } else {
    gather<uint8_t>(out, in, bytes, members, stream);
  }
}

}  // namespace megatron::comm::peer

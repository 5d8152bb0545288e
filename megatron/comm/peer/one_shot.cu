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
constexpr int64_t kMinBytes = 4 * 1024;     // minimum of a block; maximum of a small reduction
constexpr int kVectorBytes = 16;
constexpr uint64_t kTimeout = 60'000'000'000;      // nanoseconds
constexpr unsigned kPollsBetweenChecks = 1 << 14;  // of the clock and of host memory

using Flag = uint64_t;

// 8 payload bytes and their round (a low-latency protocol, as NCCL's LL). The reader polls until
// both halves carry the round: the hardware stores 8 bytes atomically. Round numbers wrap at 2^32;
// only a word last written exactly 2^32 rounds ago would be mistaken for a new one.
struct alignas(16) FlaggedWord {
  unsigned low;
  unsigned low_round;
  unsigned high;
  unsigned high_round;
};
constexpr int64_t kPayload = 8;
constexpr int64_t kWords = kMinBytes / kPayload;  // of a block and a member

// A member's exchange buffer. Block b of every member's kernel uses index b alone, so blocks of
// equal index synchronize with each other and with no others.
//
// Double buffering: round n uses slot n % 2. Round n + 2 overwrites the slot after the flags of
// round n + 1 have arrived from all members, which have then read all of round n.
struct Memory {
  Flag rounds[kMaxBlocks];                     // last round begun by each block of the member
  Flag flags[kMaxOneShotMembers][kMaxBlocks];  // last complete round of each other member
  Flag is_stopped;                             // releases all waits (OneShotGroup::stop)
  alignas(kVectorBytes) std::byte slots[2][kMaxBlocks][kBlockBytes];
};
// Follows Memory, one for each writing member: MemberWords words[size].
using MemberWords = FlaggedWord[2][kMaxBlocks][kWords];

struct Members {
  Memory* all[kMaxOneShotMembers];
  const volatile Flag* stop;
  int size;
  int rank;
};

Members members_of(const OneShotGroup& group) {
  Members members{};
  for (int i = 0; i < group.size; ++i) {
    members.all[i] = reinterpret_cast<Memory*>(group.memory[static_cast<size_t>(i)]);
  }
  members.stop = group.stop;
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

// Polling loop of a thread that waits for another member, with a timeout and a stop flag.
class Wait {
 public:
  __device__ explicit Wait(const Members& members)
      : is_stopped_(members.all[members.rank]->is_stopped), stop_(members.stop) {}

  // Call after each unsuccessful poll. Returns false once the group is stopped; traps on timeout.
  __device__ __forceinline__ bool keep_polling() {
    if (is_stopped_ != 0) return false;
    if (++polls_ % kPollsBetweenChecks != 0) return true;
    if (stop_ != nullptr && *stop_ != 0) is_stopped_ = 1;
    const uint64_t now = nanoseconds();
    if (begin_ == 0) begin_ = now;
    if (now - begin_ > kTimeout) __trap();
    return true;
  }

 private:
  volatile Flag& is_stopped_;
  const volatile Flag* const stop_;
  unsigned polls_ = 0;
  uint64_t begin_ = 0;
};

// Barrier across members: signals that this block's data of a round is complete and waits for the
// other members' signals. All threads of the block call it.
__device__ __forceinline__ void signal_and_wait(const Members& members, Flag round) {
  __syncthreads();
  const int other = static_cast<int>(threadIdx.x);
  if (other < members.size && other != members.rank) {
    __threadfence_system();
    store_release(&members.all[other]->flags[members.rank][blockIdx.x], round);
    const Flag* const theirs = &members.all[members.rank]->flags[other][blockIdx.x];
    Wait wait(members);
    while (load_acquire(theirs) < round && wait.keep_polling()) {
    }
  }
  __syncthreads();
}

__device__ __forceinline__ void write(FlaggedWord* word, uint2 payload, unsigned round) {
  asm volatile("st.volatile.global.v4.u32 [%0], {%1, %2, %3, %4};" ::"l"(word), "r"(payload.x),
               "r"(round), "r"(payload.y), "r"(round)
               : "memory");
}
// Waits until the word carries the round; returns its payload.
__device__ __forceinline__ uint2 read(const FlaggedWord* word, unsigned round,
                                      const Members& members) {
  FlaggedWord line;
  Wait wait(members);
  do {
    asm volatile("ld.volatile.global.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(line.low), "=r"(line.low_round), "=r"(line.high), "=r"(line.high_round)
                 : "l"(word)
                 : "memory");
  } while ((line.low_round != round || line.high_round != round) && wait.keep_polling());
  return {line.low, line.high};
}

// Splits this block's elements into rounds of at most `slice`. Each round copies them into the own
// slot, synchronizes with the other members and calls work(begin, count, slot).
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
    signal_and_wait(members, round);
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

// Loads element i of a member's slot of this block, bypassing the caches, which may hold an earlier
// round.
template <class T>
__device__ __forceinline__ T element(const Memory* member, int slot, int64_t i) {
  using Bits = typename BitsOf<sizeof(T)>::Type;
  const Bits bits = __ldcv(reinterpret_cast<const Bits*>(member->slots[slot][blockIdx.x]) + i);
  return reinterpret_cast<const T&>(bits);
}

// All-reduce of a small tensor in vectors of 8 bytes with the low-latency protocol.
template <class T, Reduce kOp>
__global__ void __launch_bounds__(kThreads)
    small_all_reduce_kernel(uint2* out, const uint2* in, int64_t count, int64_t slice,
                            const __grid_constant__ Members members) {
  constexpr int kN = kPayload / sizeof(T);
  Memory& own = *members.all[members.rank];
  const Flag round = own.rounds[blockIdx.x] + 1;
  const auto number = static_cast<unsigned>(round);
  const auto words_of = [&](Memory& memory, int writer) -> FlaggedWord* {
    return reinterpret_cast<MemberWords*>(&memory + 1)[writer][round % 2][blockIdx.x];
  };
  const int64_t begin = slice * blockIdx.x;
  const int64_t here = min(slice, count - begin);
  for (int64_t i = threadIdx.x; i < here; i += kThreads) {
    const uint2 x = in[begin + i];
    for (int step = 1; step < members.size;
         ++step) {  // staggered, to spread the writes over members
      Memory& other = *members.all[(members.rank + step) % members.size];
      write(words_of(other, members.rank) + i, x, number);
    }
  }
  for (int64_t i = threadIdx.x; i < here; i += kThreads) {
    SumOf<T> sum[kN];
    for (int member = 0; member < members.size; ++member) {
      const uint2 bits =
          member == members.rank ? in[begin + i] : read(words_of(own, member) + i, number, members);
      const auto& x = reinterpret_cast<const Pack<T, kN>&>(bits);
#pragma unroll
      for (int j = 0; j < kN; ++j) {
        const SumOf<T> one = widened(x.elements[j]);
        sum[j] = member == 0 ? one : combined<kOp>(sum[j], one);
      }
    }
    Pack<T, kN> result;
#pragma unroll
    for (int j = 0; j < kN; ++j) result.elements[j] = rounded<T>(sum[j]);
    out[begin + i] = reinterpret_cast<const uint2&>(result);
  }
  __syncthreads();  // all have read the round
  if (threadIdx.x == 0) own.rounds[blockIdx.x] = round;
}

// All-reduce through the slots, in vectors of N elements: 16 bytes, or one element.
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
      const int member =
          (members.rank + step) % members.size;  // staggered, to spread the reads over members
      T* const part = out + member * count + begin;
      for (int64_t i = threadIdx.x; i < here; i += kThreads) {
        part[i] = element<T>(members.all[member], slot, i);
      }
    }
  });
}

int64_t ceil_of(int64_t a, int64_t b) { return (a + b - 1) / b; }

// Calls launch(blocks, slice) for `count` elements of `bytes` each; every block has elements.
template <class Launch>
void launch_for(int64_t count, int64_t bytes, const Launch& launch) {
  if (count == 0) return;
  const int64_t most = std::min<int64_t>(ceil_of(count * bytes, kMinBytes), kMaxBlocks);
  const int64_t slice = std::min(ceil_of(count, most), kBlockBytes / bytes);
  launch(static_cast<unsigned>(std::min(ceil_of(count, slice), most)), slice);
  MG_CUDA(cudaGetLastError());
}

bool is_aligned(const void* data, int64_t bytes = kVectorBytes) {
  return reinterpret_cast<uintptr_t>(data) % static_cast<uintptr_t>(bytes) == 0;
}

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
  const int64_t bytes = count * static_cast<int64_t>(sizeof(T));
  if (bytes <= kMaxBlocks * kMinBytes && bytes % kPayload == 0 && is_aligned(out, kPayload) &&
      is_aligned(in, kPayload)) {
    launch_for(bytes / kPayload, kPayload, [&](unsigned blocks, int64_t slice) {
      small_all_reduce_kernel<T, kOp>
          <<<blocks, kThreads, 0, stream>>>(static_cast<uint2*>(out), static_cast<const uint2*>(in),
                                            bytes / kPayload, slice, members);
    });
  } else if (is_aligned(out) && is_aligned(in) && count % kVector == 0) {
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

int64_t one_shot_bytes(int size) {
  return static_cast<int64_t>(sizeof(Memory) + static_cast<size_t>(size) * sizeof(MemberWords));
}

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

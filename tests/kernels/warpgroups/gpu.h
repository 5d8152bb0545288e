#pragma once

#include <array>
#include <cstdint>
#include <cstring>
#include <functional>

#include "megatron/kernels/attention.h"

// A multiprocessor of compute capability 9.0a on the CPU, as far as kernels of warpgroups need it:
// the threads of a block take turns wherever they wait for each other or let others go on, in
// random order and some of them late. With headers of stand_in/ before those of the repository,
// kernels run here unchanged.
//
// Copies and products are asynchronous: they happen at once, or as late as a wait allows. A kernel
// that reads too early, or overwrites too early, is wrong at one of the two. It fails the test that
// a block hangs, that a product reads what was stored in shared memory without fence_shared(), that
// lanes of a warp disagree on what they do together, or that a block writes beyond its memory.
namespace megatron::gpu {

struct Timing {
  bool has_late_copies = false;
  bool has_late_products = false;
  unsigned seed = 0;          // of the order of threads
  bool has_slow_warp = true;  // whose lanes are far behind: hundreds of times slower
};

// Runs the kernel for blocks 0 .. blocks - 1, so many at a time, each on a thread of the CPU, with
// `bytes` of dynamic shared memory. Returns false after a failure.
bool run(int blocks, int threads, int bytes, const Timing& timing,
         const std::function<void()>& kernel, int blocks_at_once = 3);

struct Index {
  unsigned x = 0;
};
// Indices of the running thread; variables, as in CUDA.
// NOLINTBEGIN(cppcoreguidelines-avoid-non-const-global-variables)
extern thread_local Index thread_index, block_index, block_size, grid_size;
// NOLINTEND(cppcoreguidelines-avoid-non-const-global-variables)

// The values passed by the lanes of the warp, all of which must call it with the same `what`.
std::array<uint64_t, 32> exchange(uint64_t own, const char* what);
// Waits for `threads` threads at barrier `number`.
void block_barrier(int number, int threads);
// Lets the other threads run, in a loop that waits for one of them.
void yield();

// --- Shared memory ---

unsigned char* dynamic_memory();
uint32_t address_of(const void* shared);
void store(uint32_t to, uint32_t word);
void load(void* to, uint32_t from, uint32_t bytes);
void fence();  // fence_shared()

void init_barrier(uint32_t at, int arrivals);
void arrive(uint32_t at, uint32_t expected_bytes);
void wait(uint32_t at, uint32_t parity);

// Heads as the tensor memory accelerator sees them.
struct Map {
  kernels::ConstHeadsView x;
  int rows = 0;
};
void copy(uint32_t to, const Map& map, uint32_t barrier, std::array<int, 5> coordinates);
void copy_bytes(uint32_t to, const void* from, uint32_t bytes, uint32_t barrier);

// --- Products of warpgroups ---

// One thread's part: its sums, its left factor in registers or, if null, a descriptor.
struct Product {
  float* sums = nullptr;
  const uint32_t* left = nullptr;
  uint64_t a = 0, b = 0;  // descriptors
  bool adds = true, left_is_mn_major = false, right_is_mn_major = false;
  bool is_bfloat16 = true;
  int tiles = 0;  // of 8 columns
};
void start(const Product& part);
void order_registers();  // wgmma_fence()
void commit();
void wait_for_products(int groups);

template <class T>
uint64_t bits_of(T value) {
  static_assert(sizeof(T) <= sizeof(uint64_t));
  uint64_t bits = 0;
  std::memcpy(&bits, &value, sizeof value);
  return bits;
}
template <class T>
T from_bits(uint64_t bits) {
  T value;
  std::memcpy(&value, &bits, sizeof value);
  return value;
}

}  // namespace megatron::gpu

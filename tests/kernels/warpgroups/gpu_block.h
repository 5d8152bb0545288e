#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "tests/kernels/warpgroups/gpu.h"

// Internal types of gpu.h: a running block, its threads and its memory.
namespace megatron::gpu {

constexpr size_t kLanes = 32;
constexpr size_t kGroup = 128;      // threads of a warpgroup
constexpr uint32_t kBegin = 0x410;  // of dynamic shared memory: a multiple of 16, but not of 1024
constexpr uint32_t kMostBytes = 227 * 1024;

struct Barrier {
  int count = 0, pending = 0;
  int64_t bytes = 0;
  uint32_t phase = 0;

  void complete() {
    if (pending > 0 || bytes != 0) return;
    ++phase;
    pending = count;
  }
};

struct Copy {
  uint32_t to;
  Map map;
  uint32_t barrier;
  std::array<int, 5> at;
  const void* from = nullptr;  // bytes, instead of a map's tile
  uint32_t bytes = 0;
};

// A collective operation of threads; a generation ends when all of them have arrived.
struct Collective {
  int arrived = 0;
  uint64_t generation = 0;
  const char* what = nullptr;
  std::array<std::array<uint64_t, kLanes>, 2> values{};
};

struct GroupProduct {
  std::array<Product, kGroup> parts;
  size_t started = 0;
};

// A warpgroup's products, in order, and how many each thread has started and committed.
struct Group {
  std::vector<GroupProduct> products;
  std::array<size_t, kGroup> started{};
  std::array<bool, kGroup> is_ordered{};
  std::array<std::vector<size_t>, kGroup> groups;  // ends
  std::array<size_t, kGroup / kLanes> done{};      // of each warp
};

// A suspended thread of the block, or its scheduler: the top of a stack with saved registers.
using Context = void*;
// Saves the caller in `from` and continues at `to`. swapcontext() would also set the signal mask,
// with a system call that takes most of the time of a kernel here.
extern "C" void mg_switch_context(Context* from, Context to);

struct Thread {
  Context context = nullptr;
  std::unique_ptr<char[]> stack;
  bool is_done = false;
  bool spins = false;  // it has only looked at something
  int delay = 0;       // rounds that it misses
  // The event it waits for, if any.
  bool (*may_go_on)(const void* condition) = nullptr;
  const void* condition = nullptr;
  std::vector<uint32_t> stored;  // words of dynamic memory since its last fence
};

struct alignas(1024) Memory {
  unsigned char bytes[kMostBytes + 4096];
};

// State shared by the blocks of a kernel.
struct Kernel {
  const std::function<void()>& entry;
  std::atomic<int> next{0};
  std::atomic<bool> has_failed{false};
};

struct Block {
  explicit Block(Kernel& own) : kernel(own) {}
  Kernel& kernel;
  Memory memory;
  Timing timing;
  std::mt19937 random;
  size_t slow_warp = 0;
  uint32_t bytes = 0;
  std::vector<Thread> threads;
  std::vector<Collective> warps;
  std::vector<Group> groups;
  std::map<int, Collective> block_barriers;
  std::map<uint32_t, Barrier> barriers;
  std::vector<Copy> copies;     // late ones
  std::vector<bool> is_stored;  // a word of dynamic memory, and not fenced yet
  Context scheduler = nullptr;
};

// That runs on this thread of the CPU.
// NOLINTNEXTLINE(cppcoreguidelines-avoid-non-const-global-variables)
extern thread_local Block* block;

// Fails the test, and ends all blocks.
void fail(const std::string& what);

inline Thread& own_thread() { return block->threads[thread_index.x]; }

// Returns when the condition holds; other threads run until then.
template <class Condition>
void wait_until(const Condition& condition) {
  if (condition()) return;
  Thread& thread = own_thread();
  thread.condition = &condition;
  thread.may_go_on = [](const void* own) { return (*static_cast<const Condition*>(own))(); };
  mg_switch_context(&thread.context, block->scheduler);
  thread.may_go_on = nullptr;
}

// Lets other threads run for that many rounds.
void pause(int rounds);

// Bytes of dynamic shared memory. Every access goes through here.
unsigned char* place(uint32_t address, uint32_t size);
// The permutation of 128 bytes: bits 4 .. 6 of an address, xor bits 7 .. 9.
inline uint32_t permuted(uint32_t address) { return address ^ (address >> 7 & 7) << 4; }
// Executes a copy.
void finish(const Copy& copy);

}  // namespace megatron::gpu

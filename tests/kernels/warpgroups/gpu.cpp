#include "tests/kernels/warpgroups/gpu.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <numeric>
#include <thread>

#include "tests/kernels/warpgroups/gpu_block.h"

// The registers that a function of the x86-64 System V ABI preserves.
asm(R"(
  .text
  .globl mg_switch_context
  .type mg_switch_context, @function
mg_switch_context:
  pushq %rbp
  pushq %rbx
  pushq %r12
  pushq %r13
  pushq %r14
  pushq %r15
  movq %rsp, (%rdi)
  movq %rsi, %rsp
  popq %r15
  popq %r14
  popq %r13
  popq %r12
  popq %rbx
  popq %rbp
  ret
  .size mg_switch_context, . - mg_switch_context
)");

namespace megatron::gpu {

thread_local Index thread_index;
thread_local Index block_index;
thread_local Index block_size;
thread_local Index grid_size;
thread_local Block* block = nullptr;

void fail(const std::string& what) {
  if (!block->kernel.has_failed.exchange(true)) {
    ADD_FAILURE() << what << ", block " << block_index.x << ", thread " << thread_index.x;
  }
}

namespace {

constexpr size_t kStackBytes = 256 * 1024;
constexpr std::chrono::seconds kPatience{60};  // with other blocks

void start_thread() {
  block->kernel.entry();
  block->threads[thread_index.x].is_done = true;
  mg_switch_context(&block->threads[thread_index.x].context, block->scheduler);
}

// The number of rounds a thread skips, mostly 0: many for lanes of one warp, few for others.
int delay_of(size_t thread) {
  const bool is_slow = block->timing.has_slow_warp && thread / kLanes == block->slow_warp;
  if (block->random() % (is_slow ? 2 : 128) != 0) return 0;
  return static_cast<int>(block->random() % (is_slow ? 128 : 8));
}

// A new stack, as if mg_switch_context() had been called at the beginning of start_thread().
void prepare(Thread& thread) {
  constexpr size_t kSavedRegisters = 6;
  struct alignas(16) Top {
    std::array<void*, kSavedRegisters> registers;
    void (*entry)();
    void* return_address;  // start_thread() does not return
  };
  static_assert(sizeof(Top) % 16 == 0);
  thread.stack.reset(new char[kStackBytes]);
  char* const end = thread.stack.get() + kStackBytes;
  const size_t above = reinterpret_cast<uintptr_t>(end) % alignof(Top);
  thread.context = new (end - above - sizeof(Top)) Top{{}, start_thread, nullptr};
}

void run_block() {
  std::vector<size_t> order(block->threads.size());
  std::iota(order.begin(), order.end(), size_t{0});
  for (Thread& thread : block->threads) prepare(thread);
  size_t running = order.size();
  int idle_rounds = 0;
  auto last_progress = std::chrono::steady_clock::now();
  while (running > 0 && !block->kernel.has_failed) {
    bool goes_on = false;
    std::shuffle(order.begin(), order.end(), block->random);
    for (const size_t i : order) {
      Thread& thread = block->threads[i];
      thread_index.x = static_cast<unsigned>(i);
      if (thread.is_done) continue;
      if (thread.delay > 0) {
        --thread.delay;
        goes_on = true;
        continue;
      }
      if (thread.may_go_on != nullptr && !thread.may_go_on(thread.condition)) continue;
      thread.spins = false;
      mg_switch_context(&block->scheduler, thread.context);
      if (thread.is_done) --running;
      goes_on |= !thread.spins;
      if (thread.delay == 0) thread.delay = delay_of(i);
    }
    idle_rounds = goes_on ? 0 : idle_rounds + 1;
    if (goes_on) last_progress = std::chrono::steady_clock::now();
    if (idle_rounds < 2) continue;
    const bool spins = std::any_of(block->threads.begin(), block->threads.end(),
                                   [](const Thread& x) { return !x.is_done && x.spins; });
    if (spins && block->copies.empty() &&
        std::chrono::steady_clock::now() - last_progress < kPatience) {
      std::this_thread::yield();  // another block must go on
      continue;
    }
    if (block->copies.empty()) {
      fail("the block hangs: no thread can go on, " + std::to_string(running) + " have not ended");
      break;
    }
    const size_t next = block->random() % block->copies.size();
    const Copy copy = block->copies[next];
    block->copies.erase(block->copies.begin() + static_cast<std::ptrdiff_t>(next));
    finish(copy);
  }
  for (size_t i = block->bytes; i < sizeof block->memory.bytes; ++i) {
    if (block->memory.bytes[i] != 0xFF) {
      fail("the block writes beyond its shared memory");
      break;
    }
  }
  if (!block->copies.empty()) fail("the block ends before its copies");
}

}  // namespace

bool run(int blocks, int threads, int bytes, const Timing& timing,
         const std::function<void()>& kernel, int blocks_at_once) {
  Kernel shared{kernel};
  const auto run_blocks = [&] {
    grid_size.x = static_cast<unsigned>(blocks);
    block_size.x = static_cast<unsigned>(threads);
    for (int i = shared.next++; i < blocks && !shared.has_failed; i = shared.next++) {
      block_index.x = static_cast<unsigned>(i);
      const auto own = std::make_unique<Block>(shared);
      std::memset(own->memory.bytes, 0xFF, sizeof own->memory.bytes);  // NaN, if it is read
      own->timing = timing;
      own->random.seed(timing.seed + static_cast<unsigned>(i));
      own->bytes = static_cast<uint32_t>(bytes);
      own->slow_warp = own->random() % (static_cast<size_t>(threads) / kLanes);
      own->threads = std::vector<Thread>(static_cast<size_t>(threads));
      own->warps.resize(own->threads.size() / kLanes);
      own->groups.resize((own->threads.size() + kGroup - 1) / kGroup);
      own->is_stored.resize(own->bytes / 4 + 1);
      block = own.get();
      run_block();
      block = nullptr;
    }
  };
  std::vector<std::thread> at_once;
  for (int i = 0; i < std::min(blocks, blocks_at_once); ++i) at_once.emplace_back(run_blocks);
  for (std::thread& one : at_once) one.join();
  return !shared.has_failed;
}

void yield() {
  own_thread().spins = true;
  mg_switch_context(&own_thread().context, block->scheduler);
}

void pause(int rounds) {
  own_thread().delay = rounds;
  mg_switch_context(&own_thread().context, block->scheduler);
}

std::array<uint64_t, 32> exchange(uint64_t own, const char* what) {
  Collective& warp = block->warps[thread_index.x / kLanes];
  const uint64_t generation = warp.generation;
  if (warp.arrived > 0 && std::strcmp(warp.what, what) != 0) {
    fail(std::string("lanes of a warp meet at ") + warp.what + " and " + what);
  }
  warp.what = what;
  warp.values[generation % 2][thread_index.x % kLanes] = own;
  if (++warp.arrived == static_cast<int>(kLanes)) {
    warp.arrived = 0;
    ++warp.generation;
  }
  wait_until([&] { return warp.generation != generation; });
  return warp.values[generation % 2];
}

void block_barrier(int number, int threads) {
  Collective& collective = block->block_barriers[number];
  const uint64_t generation = collective.generation;
  if (++collective.arrived == threads) {
    collective.arrived = 0;
    ++collective.generation;
  }
  wait_until([&] { return collective.generation != generation; });
}

}  // namespace megatron::gpu

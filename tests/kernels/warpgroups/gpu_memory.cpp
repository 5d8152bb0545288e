#include <cstring>

#include "tests/kernels/warpgroups/gpu_block.h"

namespace megatron::gpu {

unsigned char* place(uint32_t address, uint32_t size) {
  if (address < kBegin || address + size > kBegin + block->bytes) {
    fail("address " + std::to_string(address) + " is outside of the block's memory");
    return block->memory.bytes;
  }
  return block->memory.bytes + (address - kBegin);
}

void finish(const Copy& copy) {
  if (copy.from != nullptr) {
    std::memcpy(place(copy.to, copy.bytes), copy.from, copy.bytes);
    Barrier& barrier = block->barriers.at(copy.barrier);
    barrier.bytes -= copy.bytes;
    return barrier.complete();
  }
  const kernels::ConstHeadsView& x = copy.map.x;
  const auto [channel, row, head, group, batch] = copy.at;
  if (copy.to % 1024 != 0) fail("a tile does not begin at a multiple of 1024 bytes");
  for (int r = 0; r < copy.map.rows; ++r) {
    for (int c = 0; c < 64; ++c) {
      uint16_t element = 0;
      const int64_t token = row + r;
      if (token >= 0 && token < x.s && channel + c < x.d && head >= 0 && head < x.heads_per_group &&
          group >= 0 && group < x.heads / x.heads_per_group) {
        const int64_t offset = token * x.stride_s + batch * x.stride_b + group * x.stride_group +
                               head * x.stride_head + channel + c;
        element = static_cast<const uint16_t*>(x.data)[offset];
      }
      const auto to = copy.to + static_cast<uint32_t>(r * 128 + c * 2);
      std::memcpy(place(permuted(to), 2), &element, 2);
    }
  }
  Barrier& barrier = block->barriers.at(copy.barrier);
  barrier.bytes -= int64_t{copy.map.rows} * 128;
  barrier.complete();
}

unsigned char* dynamic_memory() { return block->memory.bytes; }

uint32_t address_of(const void* shared) {
  const auto* const at = static_cast<const unsigned char*>(shared);
  if (at >= block->memory.bytes && at < block->memory.bytes + sizeof block->memory.bytes) {
    return kBegin + static_cast<uint32_t>(at - block->memory.bytes);
  }
  return static_cast<uint32_t>(reinterpret_cast<uintptr_t>(shared)) | 0x80000000u;
}

void store(uint32_t to, uint32_t word) {
  std::memcpy(place(to, 4), &word, 4);
  block->is_stored[(to - kBegin) / 4] = true;
  own_thread().stored.push_back((to - kBegin) / 4);
}

void fence() {
  for (const uint32_t word : own_thread().stored) block->is_stored[word] = false;
  own_thread().stored.clear();
}

void init_barrier(uint32_t at, int arrivals) {
  block->barriers[at] = {.count = arrivals, .pending = arrivals};
}

void arrive(uint32_t at, uint32_t expected_bytes) {
  const auto found = block->barriers.find(at);
  if (found == block->barriers.end()) return fail("a thread arrives at no barrier");
  Barrier& barrier = found->second;
  barrier.bytes += expected_bytes;
  if (--barrier.pending < 0) fail("too many threads arrive at a barrier");
  barrier.complete();
  // Pending asynchronous operations may complete before the thread continues.
  if (block->random() % 4 != 0) return;
  pause(static_cast<int>(block->random() % 64));
}

void wait(uint32_t at, uint32_t parity) {
  const auto found = block->barriers.find(at);
  if (found == block->barriers.end()) return fail("a thread waits at no barrier");
  wait_until([&] { return found->second.phase % 2 != parity; });
}

namespace {

void start(const Copy& copy) {
  if (!block->timing.has_late_copies) return finish(copy);
  block->copies.push_back(copy);
}

}  // namespace

void copy(uint32_t to, const Map& map, uint32_t barrier, std::array<int, 5> coordinates) {
  start({to, map, barrier, coordinates});
}

void copy_bytes(uint32_t to, const void* from, uint32_t bytes, uint32_t barrier) {
  if (to % 16 != 0 || bytes % 16 != 0 || reinterpret_cast<uintptr_t>(from) % 16 != 0) {
    fail("a copy is not aligned to 16 bytes");
  }
  start({.to = to, .map = {}, .barrier = barrier, .at = {}, .from = from, .bytes = bytes});
}

void load(void* to, uint32_t from, uint32_t bytes) { std::memcpy(to, place(from, bytes), bytes); }

}  // namespace megatron::gpu

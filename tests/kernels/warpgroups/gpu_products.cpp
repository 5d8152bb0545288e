#include <cstring>

#include "megatron/core/half.h"
#include "tests/kernels/warpgroups/gpu_block.h"

namespace megatron::gpu {
namespace {

float decoded(uint16_t bits, bool is_bfloat16) {
  if (is_bfloat16) {
    BFloat16 x;
    x.bits = bits;
    return static_cast<float>(x);
  }
  Float16 x;
  x.bits = bits;
  return static_cast<float>(x);
}

// An element of a factor in shared memory. across: its row of a left factor, column of a right one.
float factor_element(uint64_t descriptor, bool by_rows, int across, int depth, bool is_bfloat16) {
  const auto field = [&](int bit) {
    return static_cast<uint32_t>(descriptor >> bit & 0x3FFF) << 4;
  };
  if (descriptor >> 62 != 1 || (descriptor >> 49 & 7) != 0) {
    fail("a descriptor is not one of tiles with permuted rows of 128 bytes");
  }
  const uint32_t begin = field(0);
  const uint32_t next_tile = field(16);
  const uint32_t eight_rows = field(32);
  const auto row = static_cast<uint32_t>(by_rows ? depth : across);
  const auto column = static_cast<uint32_t>(by_rows ? across : depth);
  const uint32_t address = permuted(begin + row / 8 * eight_rows + row % 8 * 128 +
                                    column / 64 * next_tile + column % 64 * 2);
  const unsigned char* const at = place(address, 2);
  if (block->is_stored[(address - kBegin) / 4]) {
    fail("a product reads memory that was stored without fence_shared()");
  }
  uint16_t element = 0;
  std::memcpy(&element, at, 2);
  return decoded(element, is_bfloat16);
}

// A warp's 16 rows of a product: the warps of a group finish apart.
void finish(const GroupProduct& product, size_t warp) {
  const Product& first = product.parts[0];
  const auto columns = static_cast<size_t>(first.tiles * 8);
  std::array<std::array<float, 16>, 16> a;
  std::vector<float> b(16 * columns);
  for (size_t row = 0; row < 16 && first.left == nullptr; ++row) {
    for (size_t k = 0; k < 16; ++k) {
      a[row][k] = factor_element(first.a, first.left_is_mn_major, static_cast<int>(warp * 16 + row),
                                 static_cast<int>(k), first.is_bfloat16);
    }
  }
  for (size_t i = 0; i < b.size(); ++i) {
    b[i] = factor_element(first.b, first.right_is_mn_major, static_cast<int>(i % columns),
                          static_cast<int>(i / columns), first.is_bfloat16);
  }
  for (size_t lane = 0; lane < kLanes; ++lane) {
    const Product& part = product.parts[warp * kLanes + lane];
    if (part.tiles != first.tiles || part.b != first.b || part.a != first.a ||
        part.adds != first.adds || (part.left == nullptr) != (first.left == nullptr)) {
      fail("threads of a warpgroup start different products");
    }
    for (size_t i = 0; i < 8 && part.left != nullptr; ++i) {
      a[lane / 4 + i / 2 % 2 * 8][lane % 4 * 2 + i % 2 + i / 4 * 8] =
          decoded(static_cast<uint16_t>(part.left[i / 2] >> (i % 2 * 16)), first.is_bfloat16);
    }
  }
  for (size_t lane = 0; lane < kLanes; ++lane) {
    const Product& part = product.parts[warp * kLanes + lane];
    for (size_t i = 0; i < columns / 2; ++i) {
      const std::array<float, 16>& row = a[lane / 4 + i / 2 % 2 * 8];
      const size_t c = i / 4 * 8 + lane % 4 * 2 + i % 2;
      float sum = first.adds ? part.sums[i] : 0.0f;
      for (size_t k = 0; k < 16; ++k) sum += row[k] * b[k * columns + c];
      part.sums[i] = sum;
    }
  }
}

Group& own_group() { return block->groups[thread_index.x / kGroup]; }

// Finishes a warp's part of products up to the first that some thread has not started.
void finish_products(Group& group, size_t warp, size_t end) {
  size_t& done = group.done[warp];
  for (; done < end && group.products[done].started == kGroup; ++done) {
    finish(group.products[done], warp);
  }
}

}  // namespace

void start(const Product& part) {
  Group& group = own_group();
  const size_t thread = thread_index.x % kGroup;
  if (!group.is_ordered[thread]) fail("no wgmma_fence() before the first product of a group");
  const size_t i = group.started[thread]++;
  if (i == group.products.size()) group.products.emplace_back();
  group.products[i].parts[thread] = part;
  ++group.products[i].started;
  if (block->timing.has_late_products) return;
  for (size_t warp = 0; warp < group.done.size(); ++warp) {
    finish_products(group, warp, group.products.size());
  }
}

void order_registers() { own_group().is_ordered[thread_index.x % kGroup] = true; }

void commit() {
  Group& group = own_group();
  const size_t thread = thread_index.x % kGroup;
  group.groups[thread].push_back(group.started[thread]);
  group.is_ordered[thread] = false;
}

void wait_for_products(int groups) {
  exchange(0, "wgmma_wait");
  Group& group = own_group();
  const std::vector<size_t>& ends = group.groups[thread_index.x % kGroup];
  if (ends.size() <= static_cast<size_t>(groups)) return;
  const size_t end = ends[ends.size() - 1 - static_cast<size_t>(groups)];
  const size_t warp = thread_index.x % kGroup / kLanes;
  wait_until([&] {
    finish_products(group, warp, end);
    return group.done[warp] >= end;
  });
}

}  // namespace megatron::gpu

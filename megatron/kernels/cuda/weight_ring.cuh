#pragma once

#include <cstdint>

#include "megatron/kernels/cuda/barrier.cuh"

// A ring of tiles of weights in shared memory, which one warp fills by bulk copies and the other
// warps of the block read (compute capability 9.0).
namespace megatron::kernels::cuda {

// Rows of a matrix that a block computes.
struct RowPart {
  int begin, count;
  static constexpr int kTileRows = 16;
  __device__ __forceinline__ int tiles() const { return (count + kTileRows - 1) / kTileRows; }
  // Tiles of about equal numbers of rows. The first row of a tile, from `begin` on.
  __device__ __forceinline__ int first(int tile) const {
    const int all = tiles();
    return all == 0 ? 0 : count * tile / all;
  }
};

// Where a warp is in the ring. A slot holds up to 16 rows of `columns` elements of 16 bits. Rows
// are 16 bytes apart more than they are long, so that eight of them lie in different banks.
struct WeightRing {
  uint32_t full, empty, data;  // shared memory: barriers of the slots, and the slots
  int slots, columns;
  int slot = 0;
  uint32_t parity = 0;
  // Of the warp that fills: the slots it has asked for, and the one that it waits for next.
  int asked = 0, arriving = 0;
  uint32_t arriving_parity = 0;

  __host__ __device__ static int row_bytes(int columns) { return columns * 2 + 16; }
  __host__ __device__ static int slot_bytes(int columns) {
    return RowPart::kTileRows * row_bytes(columns);
  }

  __device__ uint32_t full_barrier() const { return full + static_cast<uint32_t>(slot) * 8; }
  __device__ uint32_t empty_barrier() const { return empty + static_cast<uint32_t>(slot) * 8; }
  __device__ uint32_t place() const {
    return data + static_cast<uint32_t>(slot * slot_bytes(columns));
  }
  __device__ __forceinline__ void advance() {
    if (++slot < slots) return;
    slot = 0;
    parity ^= 1;
  }

  // Slots that are under way at once, fewer than there are. They keep memory busy; with more, other
  // accesses wait behind them.
  static constexpr int kUnderWay = 2;

  // Copies the rows of a part of weight [.., k], tile by tile, `columns` at a time. By a warp.
  __device__ __forceinline__ void fill(const void* weight, const RowPart& part, int k) {
    uint64_t read_once;  // weights leave the cache first
    asm("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(read_once));
    const int lane = static_cast<int>(threadIdx.x) % 32;
    const auto* const bytes = static_cast<const char*>(weight);
    const auto length = static_cast<uint32_t>(columns) * 2;
    for (int tile = 0; tile < part.tiles(); ++tile) {
      const int first = part.first(tile);
      const int rows = part.first(tile + 1) - first;
      const char* const row = bytes + (int64_t{part.begin} + first + lane) * k * 2;
      for (int column = 0; column < k; column += columns) {
        barrier::wait(empty_barrier(), parity ^ 1);
        if (++asked > kUnderWay) {
          barrier::wait(full + static_cast<uint32_t>(arriving) * 8, arriving_parity);
          if (++arriving == slots) arriving = 0, arriving_parity ^= 1;
        }
        if (lane == 0) {
          barrier::arrive_and_expect(full_barrier(), length * static_cast<uint32_t>(rows));
        }
        __syncwarp();
        if (lane < rows) {
          const uint32_t to = place() + static_cast<uint32_t>(lane * row_bytes(columns));
          asm volatile(
              "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint "
              "[%0], [%1], %2, [%3], %4;" ::"r"(to),
              "l"(row + int64_t{column} * 2), "r"(length), "r"(full_barrier()), "l"(read_once)
              : "memory");
        }
        advance();
      }
    }
  }
};

}  // namespace megatron::kernels::cuda

#pragma once

#include <cstdint>

#include "megatron/kernels/cuda/barrier.cuh"
#include "megatron/kernels/cuda/decode_text_division.h"
#include "megatron/kernels/cuda/decode_text_instructions.cuh"

// Ring buffer of weight tiles in shared memory: a producer warp fills it by bulk copies, the MMA
// warps of the block consume it (compute capability 9.0).
namespace megatron::kernels::cuda {

// Rows [begin, begin + count) of a matrix.
struct RowRange {
  int begin, count;
};

// A warp's view of the ring: slot and barrier phase. A slot holds up to `tile_rows` rows of
// `columns` 16-bit elements.
struct WeightRing {
  uint32_t full, empty, data;  // shared-memory addresses: full and empty barriers, slots
  int slots, columns, tile_rows, row_bytes, slot_bytes;
  int in_flight = 1;  // maximum slots in flight, below `slots`
  int slot = 0;
  uint32_t parity = 0;
  // Producer: number of issued slots, and the slot whose arrival it awaits next.
  int issued = 0, arriving = 0;
  uint32_t arriving_parity = 0;

  // Number of rows of the tile that begins at row `first` of a part.
  __device__ __forceinline__ int rows_of_tile(const RowRange& part, int first) const {
    return min(tile_rows, part.count - first);
  }
  __device__ __forceinline__ uint32_t full_barrier() const {
    return full + static_cast<uint32_t>(slot) * 8;
  }
  __device__ __forceinline__ uint32_t empty_barrier() const {
    return empty + static_cast<uint32_t>(slot) * 8;
  }
  __device__ __forceinline__ uint32_t slot_address() const {
    return data + static_cast<uint32_t>(slot * slot_bytes);
  }
  __device__ __forceinline__ void advance(int by) {
    slot += by;
    if (slot < slots) return;
    slot -= slots;
    parity ^= 1;
  }

  // Producer: copies the rows of a part of a weight of k columns, tile by tile, `columns` at a
  // time. row_at(row) is the address of a row, column_offset(column) the offset of a column from it
  // in bytes. The whole warp calls it.
  template <class Row, class Column>
  __device__ __forceinline__ void fill(const Row& row_at, const Column& column_offset,
                                       const RowRange& part, int k) {
    const int lane = static_cast<int>(threadIdx.x) % 32;
    const auto length = static_cast<uint32_t>(columns) * 2;
    for (int first = 0; first < part.count; first += tile_rows) {
      const int rows = rows_of_tile(part, first);
      const char* const row = row_at(part.begin + first + min(lane, rows - 1));
      for (int column = 0; column < k; column += columns) {
        barrier::wait(empty_barrier(), parity ^ 1);
        if (++issued > in_flight) {
          barrier::wait(full + static_cast<uint32_t>(arriving) * 8, arriving_parity);
          if (++arriving == slots) arriving = 0, arriving_parity ^= 1;
        }
        if (lane == 0) {
          barrier::arrive_and_expect(full_barrier(), length * static_cast<uint32_t>(rows));
        }
        __syncwarp();
        if (lane < rows) {
          copy_once(slot_address() + static_cast<uint32_t>(lane * row_bytes),
                    row + column_offset(column), length, full_barrier());
        }
        advance(1);
      }
    }
  }
};

}  // namespace megatron::kernels::cuda

#pragma once

#include <cstdint>

// Tiles in shared memory as factors of a warpgroup's product (wgmma.cuh).
//
// A tile has rows of 64 elements of 16 bits (128 bytes) and begins at a multiple of 1024 bytes. The
// 16-byte parts of row r are permuted: part i lies at place i xor r % 8. A matrix of 128 columns is
// two tiles, one after the other.
namespace megatron::kernels::cuda {

inline constexpr int kTileColumns = 64;
inline constexpr int kTileRowBytes = kTileColumns * 2;
inline constexpr int kTileAlignment = 1024;

// Where part i of row r begins, in bytes from the tile's first.
__device__ __forceinline__ constexpr uint32_t tile_part(int row, int part) {
  return static_cast<uint32_t>(row * kTileRowBytes + (part ^ row % 8) * 16);
}

// A factor (PTX ISA, matrix descriptor): its address over 16 and the bytes over 16 from a tile to
// the next one, the bytes over 16 from 8 rows to the next 8 and the permutation.
struct SharedMatrix {
  uint32_t low;
  static constexpr uint32_t kHigh = 8 * kTileRowBytes >> 4 | 1u << 30;

  __device__ SharedMatrix(uint32_t address, uint32_t next_tile)
      : low((address & 0x3FFFFu) >> 4 | next_tile >> 4 << 16) {}
  // The matrix that begins `bytes` later.
  __device__ SharedMatrix after(int bytes) const {
    SharedMatrix moved = *this;
    moved.low += static_cast<uint32_t>(bytes / 16);
    return moved;
  }
  __device__ uint64_t bits() const { return uint64_t{kHigh} << 32 | low; }
};
// Rows of the tile are rows of a left factor or columns of a right one, so that depth runs along a
// row: steps of 16 are 32 bytes apart.
__device__ __forceinline__ SharedMatrix matrix_by_columns(uint32_t address) {
  return SharedMatrix(address, 16);
}
// Rows of the tile are depths: steps of 16 are 2048 bytes apart. Columns 64 .. 127 are in a tile
// that begins `next_tile` bytes later.
__device__ __forceinline__ SharedMatrix matrix_by_rows(uint32_t address, uint32_t next_tile) {
  return SharedMatrix(address, next_tile);
}

// Where a step of 16 of the depth begins, in bytes: of a matrix by rows, and of a matrix by columns
// whose tiles of 64 columns are `tile_bytes` long.
__device__ __forceinline__ constexpr int step_by_rows(int step) {
  return step * 16 * kTileRowBytes;
}
__device__ __forceinline__ constexpr int step_by_columns(int step, int tile_bytes) {
  return step / 4 * tile_bytes + step % 4 * 32;
}

}  // namespace megatron::kernels::cuda

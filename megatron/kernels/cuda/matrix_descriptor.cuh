#pragma once

#include <cstdint>

// Tiles in shared memory as operands of wgmma (wgmma.cuh).
//
// A tile has rows of 64 elements of 16 bits (128 bytes) and begins at a multiple of 1024 bytes. The
// layout has the 128-byte swizzle: 16-byte part i of row r lies at part i xor r % 8. A matrix of
// 128 columns is two tiles, one after the other.
namespace megatron::kernels::cuda {

inline constexpr int kTileColumns = 64;
inline constexpr int kTileRowBytes = kTileColumns * 2;
inline constexpr int kTileAlignment = 1024;

// Byte offset of part i of row r in the swizzled tile.
__device__ __forceinline__ constexpr uint32_t tile_part(int row, int part) {
  return static_cast<uint32_t>(row * kTileRowBytes + (part ^ row % 8) * 16);
}

// Matrix descriptor (PTX ISA, wgmma): address, leading byte offset (to the next tile) and stride
// byte offset (to the next 8 rows), all over 16, and the swizzle mode.
struct MatrixDescriptor {
  uint32_t low;
  static constexpr uint32_t kHigh = 8 * kTileRowBytes >> 4 | 1u << 30;

  __device__ MatrixDescriptor(uint32_t address, uint32_t next_tile)
      : low((address & 0x3FFFFu) >> 4 | next_tile >> 4 << 16) {}
  // The descriptor advanced by `bytes`.
  __device__ MatrixDescriptor after(int bytes) const {
    MatrixDescriptor moved = *this;
    moved.low += static_cast<uint32_t>(bytes / 16);
    return moved;
  }
  __device__ uint64_t bits() const { return uint64_t{kHigh} << 32 | low; }
};
// K-major operand: tile rows are rows of a left or columns of a right operand; depth runs along a
// row, and steps of 16 are 32 bytes apart.
__device__ __forceinline__ MatrixDescriptor k_major_matrix(uint32_t address) {
  return MatrixDescriptor(address, 16);
}
// MN-major operand: tile rows are depths, and steps of 16 are 2048 bytes apart. Columns 64 .. 127
// are in a tile `next_tile` bytes later.
__device__ __forceinline__ MatrixDescriptor mn_major_matrix(uint32_t address, uint32_t next_tile) {
  return MatrixDescriptor(address, next_tile);
}

// Byte offset of step `step`, 16 deep, of an MN-major operand, and of a K-major operand whose tiles
// of 64 columns have `tile_bytes` bytes.
__device__ __forceinline__ constexpr int mn_major_step(int step) {
  return step * 16 * kTileRowBytes;
}
__device__ __forceinline__ constexpr int k_major_step(int step, int tile_bytes) {
  return step / 4 * tile_bytes + step % 4 * 32;
}

}  // namespace megatron::kernels::cuda

#pragma once

#include <cstdint>

#include "megatron/core/view.h"

// Tensors as fp32, a tile at a time. Kernels are written once, over floats: they access fp32
// tensors in place, and 16-bit ones through a tile on the stack, which stays in the L1 cache.
// Nothing here is inline: a compiler that sees both cases splits the loop that follows in two and
// vectorises only one of them.
namespace megatron::kernels::cpu {

inline constexpr int64_t kTileSize = 512;

struct alignas(64) Tile {
  float values[kTileSize];
};

// out[i] = in[i]; narrowing rounds to nearest even. SIMD for every pair of dtypes.
void to_floats(float* out, const void* in, DType dtype, int64_t n);
void from_floats(void* out, DType dtype, const float* in, int64_t n);

// values[i] = values[i] rounded to `dtype`. n <= kTileSize.
void round_to(DType dtype, float* values, int64_t n);

class TileReader {
 public:
  // Throws DtypeError naming `who` unless x is fp32, fp16 or bf16. A null view reads nothing.
  TileReader(ConstView x, const char* who);

  bool is_null() const { return data_ == nullptr; }
  // Elements [at, at + n), n <= kTileSize: in place, or converted into `buffer`.
  const float* read(int64_t at, int64_t n, Tile& buffer) const;

 private:
  const std::byte* data_;
  DType dtype_;
  int64_t width_;
};

class TileWriter {
 public:
  TileWriter(TensorView y, const char* who);

  bool is_null() const { return data_ == nullptr; }
  // The destination of elements [at, ..); commit() with the same buffer follows.
  float* begin(int64_t at, Tile& buffer) const;
  void commit(int64_t at, int64_t n, const Tile& buffer) const;
  // y = beta * y + sums on elements [at, at + n); does not read y if beta is 0.
  void accumulate(int64_t at, int64_t n, const Tile& sums, float beta) const;

 private:
  std::byte* data_;
  DType dtype_;
  int64_t width_;
};

// Calls f(at, n) for the tiles of a row of `cols` elements.
template <class F>
void for_each_tile(int64_t cols, const F& f) {
  for (int64_t at = 0; at < cols; at += kTileSize) {
    f(at, cols - at < kTileSize ? cols - at : kTileSize);
  }
}

// The fewest rows that pay for another thread.
inline int64_t row_grain(int64_t cols) { return cols >= 16384 ? 1 : 16384 / (cols + 1) + 1; }

}  // namespace megatron::kernels::cpu

#include "megatron/formats/transpose.h"

#include <algorithm>
#include <cstring>
#include <utility>

namespace megatron {
namespace {

constexpr size_t kVectorBytes = 16;
// Bytes of a line of a tile: four cache lines.
constexpr int64_t kTileBytes = 256;
// Rows of x that are transposed before the next columns: the TLB still has their pages.
constexpr int64_t kBand = 512;

template <class T>
struct Lanes {
  static constexpr size_t kCount = kVectorBytes / sizeof(T);
  using Vector __attribute__((vector_size(kVectorBytes))) = T;
};

// a0 b0 a1 b1 ... of one half of the lanes.
template <class T, size_t first, size_t... lane>
typename Lanes<T>::Vector interleaved(typename Lanes<T>::Vector a, typename Lanes<T>::Vector b,
                                      std::index_sequence<lane...>) {
  constexpr size_t n = Lanes<T>::kCount;
  return __builtin_shufflevector(a, b, static_cast<int>(first + lane / 2 + lane % 2 * n)...);
}

// One step of a perfect shuffle of n rows; log2(n) steps transpose a square.
template <class T, size_t... row>
void shuffle(typename Lanes<T>::Vector* square, std::index_sequence<row...> lanes) {
  constexpr size_t n = Lanes<T>::kCount;
  const typename Lanes<T>::Vector next[] = {
      (row % 2 == 0 ? interleaved<T, 0>(square[row / 2], square[row / 2 + n / 2], lanes)
                    : interleaved<T, n / 2>(square[row / 2], square[row / 2 + n / 2], lanes))...};
  ((square[row] = next[row]), ...);
}

template <class T, size_t... row>
void transpose_square(T* y, const T* x, int64_t stride, std::index_sequence<row...> lanes) {
  typename Lanes<T>::Vector square[Lanes<T>::kCount];
  (std::memcpy(&square[row], x + static_cast<int64_t>(row) * stride, kVectorBytes), ...);
  for (size_t step = 1; step < Lanes<T>::kCount; step *= 2) shuffle<T>(square, lanes);
  (std::memcpy(y + static_cast<int64_t>(row) * stride, &square[row], kVectorBytes), ...);
}

// Each tile is transposed in separate buffers: strides of matrices are often powers of two, whose
// lines would evict each other from the cache.
template <class T>
void transpose(Corner y, ConstCorner x, int64_t rows, int64_t columns) {
  constexpr auto kSize = static_cast<int64_t>(sizeof(T));
  constexpr int64_t kTile = kTileBytes / kSize;
  constexpr auto kSquare = static_cast<int64_t>(Lanes<T>::kCount);
  alignas(64) T tile[kTile * kTile];
  alignas(64) T turned[kTile * kTile];
  for (int64_t band = 0; band < rows; band += kBand) {
    const int64_t band_end = std::min(rows, band + kBand);
    for (int64_t c0 = 0; c0 < columns; c0 += kTile) {
      const int64_t width = std::min(kTile, columns - c0);
      for (int64_t r0 = band; r0 < band_end; r0 += kTile) {
        const int64_t height = std::min(kTile, band_end - r0);
        for (int64_t r = 0; r < height; ++r) {
          std::memcpy(tile + r * kTile, x.data + (r0 + r) * x.stride + c0 * kSize,
                      static_cast<size_t>(width * kSize));
        }
        for (int64_t c = 0; c < width; c += kSquare) {
          for (int64_t r = 0; r < height; r += kSquare) {
            transpose_square(turned + c * kTile + r, tile + r * kTile + c, kTile,
                             std::make_index_sequence<Lanes<T>::kCount>());
          }
        }
        for (int64_t c = 0; c < width; ++c) {
          std::memcpy(y.data + (c0 + c) * y.stride + r0 * kSize, turned + c * kTile,
                      static_cast<size_t>(height * kSize));
        }
      }
    }
  }
}

}  // namespace

void transpose(Corner y, ConstCorner x, int64_t rows, int64_t columns, int64_t element_bytes) {
  switch (element_bytes) {
    case 1:
      return transpose<uint8_t>(y, x, rows, columns);
    case 2:
      return transpose<uint16_t>(y, x, rows, columns);
    case 4:
      return transpose<uint32_t>(y, x, rows, columns);
    default:
      return transpose<uint64_t>(y, x, rows, columns);
  }
}

}  // namespace megatron

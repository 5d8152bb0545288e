#include "megatron/formats/stored_tensor.h"

#include <algorithm>
#include <cstddef>
#include <utility>

#include "megatron/core/error.h"
#include "megatron/formats/safetensors.h"

namespace megatron {
namespace {

// The number of the region's elements that the pieces cover.
int64_t covered(const StoredTensor& tensor, const Region& region) {
  int64_t elements = 0;
  for (const TensorPiece& piece : tensor.pieces) {
    int64_t shared = 1;
    for (int axis = 0; axis < region.shape.rank(); ++axis) {
      const auto i = static_cast<size_t>(axis);
      const int64_t begin = std::max(piece.region.offset[i], region.offset[i]);
      const int64_t end = std::min(piece.region.offset[i] + piece.region.shape[axis],
                                   region.offset[i] + region.shape[axis]);
      shared *= std::max<int64_t>(end - begin, 0);
    }
    elements += shared;
  }
  return elements;
}

}  // namespace

StoredTensor tensor_in_one_piece(const Shape& shape, DType dtype, ElementReader read) {
  return {shape, dtype, {{whole_region(shape), std::move(read)}}};
}

void convert(StoredTensor& tensor, DType dtype) {
  if (tensor.dtype == dtype) return;
  tensor.dtype = dtype;
  for (TensorPiece& piece : tensor.pieces) {
    piece.read = [read = std::move(piece.read), dtype] {
      const Tensor converted = cast(copy_of(read().view), dtype);
      return FileElements{converted.view(), converted};
    };
  }
}

void read_region_into(Tensor& y, const StoredTensor& tensor, const Region& region) {
  auto* to = static_cast<std::byte*>(y.view().data);
  if (covered(tensor, region) < region.shape.numel()) std::fill_n(to, y.bytes(), std::byte{0});
  for (const TensorPiece& piece : tensor.pieces) {
    if (!intersects(piece.region, region)) continue;
    const FileElements elements = piece.read();
    expect_shape(elements.view.shape, piece.region.shape, "a piece of a checkpoint");
    copy_shared(to, region, static_cast<const std::byte*>(elements.view.data), piece.region,
                size_of(tensor.dtype));
  }
}

Tensor read_region(const StoredTensor& tensor, const Region& region) {
  invariant(is_inside(region, tensor.shape), "a region to read is inside its tensor");
  Tensor y(region.shape, tensor.dtype, Stream{});
  read_region_into(y, tensor, region);
  return y;
}

Tensor read_whole(const StoredTensor& tensor) {
  return read_region(tensor, whole_region(tensor.shape));
}

FileElements elements_of(const StoredTensor& tensor, const Region& region) {
  for (const TensorPiece& piece : tensor.pieces) {
    if (piece.region.shape == region.shape && piece.region.offset == region.offset) {
      return piece.read();
    }
  }
  const Tensor joined = read_region(tensor, region);
  return {joined.view(), joined};
}

FileElements whole_elements(const StoredTensor& tensor) {
  return elements_of(tensor, whole_region(tensor.shape));
}

}  // namespace megatron

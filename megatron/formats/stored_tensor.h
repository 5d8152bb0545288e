#pragma once

#include <functional>
#include <map>
#include <string>
#include <vector>

#include "megatron/formats/file_elements.h"
#include "megatron/formats/region.h"

// Tensors in files of any format, read on demand.
namespace megatron {

// Reads elements, which may be unaligned. Several threads may call one reader at once.
using ElementReader = std::function<FileElements()>;

// A rectangle of a tensor; `read` returns its elements row-major, in the rectangle's shape.
struct TensorPiece {
  Region region;
  ElementReader read;
};

struct StoredTensor {
  Shape shape;
  DType dtype = DType::kFloat32;
  std::vector<TensorPiece> pieces;  // do not overlap; uncovered elements are zero
};
using StoredSection = std::map<std::string, StoredTensor>;  // by name

StoredTensor tensor_in_one_piece(const Shape& shape, DType dtype, ElementReader read);

// Makes readers round to another dtype. REQUIRES: both dtypes are floating.
void convert(StoredTensor& tensor, DType dtype);

// A part of a tensor, on the CPU and in its own dtype. REQUIRES: the region is inside the tensor.
Tensor read_region(const StoredTensor& tensor, const Region& region);
Tensor read_whole(const StoredTensor& tensor);
// The same into `y`, a CPU tensor of the region's shape and the tensor's dtype.
void read_region_into(Tensor& y, const StoredTensor& tensor, const Region& region);
// The same, without a copy if the elements are contiguous.
FileElements elements_of(const StoredTensor& tensor, const Region& region);
FileElements whole_elements(const StoredTensor& tensor);

}  // namespace megatron

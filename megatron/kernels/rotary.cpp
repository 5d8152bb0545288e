#include "megatron/kernels/rotary.h"

#include <fmt/format.h>

#include "megatron/kernels/dispatch.h"

namespace megatron::kernels {

void rotary_inplace(HeadsView x, ConstView table, ConstView position_ids, int64_t offset,
                    RotaryPairs pairs, bool inverse, Stream stream) {
  const int64_t dim = table.size(1);
  if (dim % 2 != 0 || dim > x.d) {
    throw ShapeError(
        fmt::format("rotary: {} channels must be even and at most the head size {}; "
                    "change --rotary-percent",
                    dim, x.d));
  }
  expect_dtype(table.dtype, DType::kFloat32, "rotary: table");
  if (position_ids.data != nullptr) {
    expect_shape(position_ids.shape, {x.b, x.s}, "rotary: position_ids");
    expect_dtype(position_ids.dtype, DType::kInt64, "rotary: position_ids");
  } else if (offset + x.s > table.size(0)) {
    throw ShapeError(
        fmt::format("rotary: the table has {} positions, {} are needed; make it longer",
                    table.size(0), offset + x.s));
  }
  return dispatch<cpu::rotary_inplace, cuda::rotary_inplace>(
      "rotary_inplace", x, table, position_ids, offset, pairs, inverse, stream);
}

}  // namespace megatron::kernels

#include "megatron/kernels/rotary.h"

#include "megatron/kernels/dispatch.h"

namespace megatron::kernels {

void rotate(const HeadsView& x, ConstView table, ConstView position_ids,
            const RotarySettings& settings, Stream stream) {
  if (2 * table.size(1) > x.d) {
    throw ShapeError("rotate: the table " + table.shape.str() + " turns more than the " +
                     std::to_string(x.d) + " channels of a head");
  }
  if (position_ids.data != nullptr) {
    expect_shape(position_ids.shape, {x.b, x.s}, "rotate: position_ids");
  } else if (settings.position_offset + x.s > table.size(0)) {
    throw ShapeError("rotate: position " + std::to_string(settings.position_offset + x.s - 1) +
                     " is outside the table " + table.shape.str());
  }
  if (stream.is_cpu()) return cpu::rotate(x, table, position_ids, settings, stream);
  throw_built_without_cuda("rotate");
}

}  // namespace megatron::kernels

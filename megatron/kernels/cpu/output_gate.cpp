#include "megatron/kernels/output_gate.h"

#include "megatron/kernels/cpu/tiles.h"
#include "megatron/kernels/cpu/vector_math.h"

namespace megatron::kernels::cpu {

void output_gate_forward(TensorView y, ConstView x, ConstView gate, Stream) {
  const TileReader x_tiles(x, "output_gate_forward");
  const TileReader gate_tiles(gate, "output_gate_forward");
  const TileWriter out(y, "output_gate_forward");
  for_each_tile(x.numel(), [&](int64_t at, int64_t n) {
    Tile x_buffer, gate_buffer, y_buffer;
    const float* from = x_tiles.read(at, n, x_buffer);
    const float* g = gate_tiles.read(at, n, gate_buffer);
    float* to = out.begin(at, y_buffer);
    for (int64_t i = 0; i < n; ++i) to[i] = from[i] * fast_sigmoid(g[i]);
    out.commit(at, n, y_buffer);
  });
}

void output_gate_backward(TensorView dx, TensorView dgate, ConstView dy, ConstView x,
                          ConstView gate, Stream) {
  const TileReader dy_tiles(dy, "output_gate_backward");
  const TileReader x_tiles(x, "output_gate_backward");
  const TileReader gate_tiles(gate, "output_gate_backward");
  const TileWriter dx_out(dx, "output_gate_backward");
  const TileWriter dgate_out(dgate, "output_gate_backward");
  for_each_tile(x.numel(), [&](int64_t at, int64_t n) {
    Tile dy_buffer, x_buffer, gate_buffer, dx_buffer, dgate_buffer;
    const float* dout = dy_tiles.read(at, n, dy_buffer);
    const float* from = x_tiles.read(at, n, x_buffer);
    const float* g = gate_tiles.read(at, n, gate_buffer);
    float* to = dx_out.begin(at, dx_buffer);
    float* to_gate = dgate_out.begin(at, dgate_buffer);
    for (int64_t i = 0; i < n; ++i) {
      const float open = fast_sigmoid(g[i]);
      const float grad = dout[i];
      to[i] = grad * open;
      to_gate[i] = grad * from[i] * open * (1.0f - open);
    }
    dx_out.commit(at, n, dx_buffer);
    dgate_out.commit(at, n, dgate_buffer);
  });
}

}  // namespace megatron::kernels::cpu

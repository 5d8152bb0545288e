#include "megatron/kernels/expert_rows.h"

#include "megatron/kernels/on_cpu_alone.h"

namespace megatron::kernels {

void gather_token_rows(TensorView y, ConstView x, ConstView slots, int64_t k, Stream stream) {
  on_cpu_alone<cpu::gather_token_rows>(stream, y, x, slots, k);
}

void combine_token_rows(TensorView y, ConstView x, ConstView rows, Stream stream) {
  on_cpu_alone<cpu::combine_token_rows>(stream, y, x, rows);
}

void weigh_rows_forward(TensorView y, ConstView x, ConstView weights, ConstView slots,
                        Stream stream) {
  on_cpu_alone<cpu::weigh_rows_forward>(stream, y, x, weights, slots);
}

void weigh_rows_backward(TensorView dx, TensorView dweights, ConstView dy, ConstView x,
                         ConstView weights, ConstView slots, Stream stream) {
  on_cpu_alone<cpu::weigh_rows_backward>(stream, dx, dweights, dy, x, weights, slots);
}

}  // namespace megatron::kernels

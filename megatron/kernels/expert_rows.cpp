#include "megatron/kernels/expert_rows.h"

#include "megatron/kernels/dispatch.h"

namespace megatron::kernels {

void order_by_expert(TensorView offsets, TensorView slots, TensorView rows, ConstView ids,
                     int64_t first_expert, TensorView workspace, Stream stream) {
  expect_shape(rows.shape, ids.shape, "order_by_expert: rows");
  dispatch<cpu::order_by_expert, cuda::order_by_expert>("order_by_expert", offsets, slots, rows,
                                                        ids, first_expert, workspace, stream);
}

int64_t expert_order_workspace_bytes(int64_t slots, int64_t experts, Stream stream) {
  if constexpr (kBuiltWithCuda) {
    if (!stream.is_cpu()) return cuda::expert_order_workspace_bytes(slots, experts);
  }
  return 0;
}

void gather_token_rows(TensorView y, ConstView x, ConstView slots, int64_t k, Stream stream) {
  expect_dtype(y.dtype, x.dtype, "gather_token_rows: y");
  dispatch<cpu::gather_token_rows, cuda::gather_token_rows>("gather_token_rows", y, x, slots, k,
                                                            stream);
}

void gather_rounded_rows(TensorView y, Fp8RowsView y8, ConstView x, ConstView slots, int64_t k,
                         Stream stream) {
  expect_dtype(y.dtype, x.dtype, "gather_rounded_rows: y");
  y8.expect_valid(y.shape, "gather_rounded_rows: y8");
  dispatch<cpu::gather_rounded_rows, cuda::gather_rounded_rows>("gather_rounded_rows", y, y8, x,
                                                                slots, k, stream);
}

void gather_fp8_rows(TensorView y, TensorView y_scales, ConstView x, ConstView x_scales,
                     ConstView slots, int64_t k, Stream stream) {
  expect_dtype(y.dtype, x.dtype, "gather_fp8_rows: y");
  expect_shape(y_scales.shape, {y.size(0)}, "gather_fp8_rows: y_scales");
  expect_shape(x_scales.shape, {x.size(0)}, "gather_fp8_rows: x_scales");
  dispatch<cpu::gather_fp8_rows, cuda::gather_fp8_rows>("gather_fp8_rows", y, y_scales, x, x_scales,
                                                        slots, k, stream);
}

void combine_token_rows(TensorView y, ConstView x, ConstView rows, Stream stream) {
  dispatch<cpu::combine_token_rows, cuda::combine_token_rows>("combine_token_rows", y, x, rows,
                                                              stream);
}

void weigh_rows_forward(TensorView y, ConstView x, ConstView weights, ConstView slots,
                        Stream stream) {
  dispatch<cpu::weigh_rows_forward, cuda::weigh_rows_forward>("weigh_rows", y, x, weights, slots,
                                                              stream);
}

void weigh_rows_backward(TensorView dx, TensorView dweights, ConstView dy, ConstView x,
                         ConstView weights, ConstView slots, Stream stream) {
  dispatch<cpu::weigh_rows_backward, cuda::weigh_rows_backward>("weigh_rows", dx, dweights, dy, x,
                                                                weights, slots, stream);
}

}  // namespace megatron::kernels

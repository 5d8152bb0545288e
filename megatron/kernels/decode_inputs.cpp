#include "megatron/kernels/decode_inputs.h"

#include <algorithm>

#include "megatron/kernels/dispatch.h"

namespace megatron::kernels {

void decode_inputs(TensorView ids, TensorView positions, TensorView pages, ConstView tokens,
                   ConstView lengths, ConstView drawn, ConstView changes, Stream stream) {
  const int64_t rows = ids.numel();
  expect_shape(positions.shape, ids.shape, "decode_inputs: positions");
  expect_shape(tokens.shape, {rows}, "decode_inputs: tokens");
  expect_shape(lengths.shape, {rows}, "decode_inputs: lengths");
  return dispatch<cpu::decode_inputs, cuda::decode_inputs>("decode_inputs", ids, positions, pages,
                                                           tokens, lengths, drawn, changes, stream);
}

void cpu::decode_inputs(TensorView ids, TensorView positions, TensorView pages, ConstView tokens,
                        ConstView lengths, ConstView drawn, ConstView changes, Stream) {
  const int32_t* const change = changes.as<int32_t>();
  for (int32_t i = 0; i < change[0]; ++i) {
    pages.as<int32_t>()[change[1 + 2 * i]] = change[2 + 2 * i];
  }
  for (int64_t row = 0; row < ids.numel(); ++row) {
    const int32_t length = lengths.as<int32_t>()[row];
    const int32_t token = tokens.as<int32_t>()[row];
    const int32_t id = token >= 0 ? token : drawn.as<int32_t>()[-1 - token];
    ids.as<int64_t>()[row] = length > 0 ? std::max(id, 0) : 0;
    positions.as<int64_t>()[row] = std::max(length - 1, 0);
  }
}

}  // namespace megatron::kernels

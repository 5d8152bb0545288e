#include "megatron/kernels/decode_inputs.h"

#include "megatron/kernels/cuda/launch.cuh"

namespace megatron::kernels::cuda {
namespace {

__global__ void __launch_bounds__(kThreads)
    decode_inputs_kernel(int64_t* ids, int64_t* positions, int32_t* pages, const int32_t* tokens,
                         const int32_t* lengths, const int32_t* drawn, const int32_t* changes,
                         int64_t rows) {
  const int64_t row = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  const int num_changes = changes[0];
  for (auto i = static_cast<int>(row); i < num_changes;
       i += static_cast<int>(gridDim.x * blockDim.x)) {
    pages[changes[1 + 2 * i]] = changes[2 + 2 * i];
  }
  if (row >= rows) return;
  const int length = lengths[row];
  const int token = tokens[row];
  const int id = length <= 0 ? 0 : token >= 0 ? token : drawn[-1 - token];
  ids[row] = id > 0 ? id : 0;
  positions[row] = length > 0 ? length - 1 : 0;
}

}  // namespace

void decode_inputs(TensorView ids, TensorView positions, TensorView pages, ConstView tokens,
                   ConstView lengths, ConstView drawn, ConstView changes, Stream stream) {
  const int64_t rows = ids.numel();
  if (rows == 0) return;
  decode_inputs_kernel<<<blocks_for(rows, kThreads), kThreads, 0, native(stream)>>>(
      ids.as<int64_t>(), positions.as<int64_t>(), pages.as<int32_t>(), tokens.as<int32_t>(),
      lengths.as<int32_t>(), drawn.as<int32_t>(), changes.as<int32_t>(), rows);
  MG_CUDA(cudaGetLastError());
}

}  // namespace megatron::kernels::cuda

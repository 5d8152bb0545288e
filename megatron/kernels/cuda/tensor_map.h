#pragma once

#include <cuda.h>

#include "megatron/kernels/attention.h"

namespace megatron::kernels::cuda {

// Describes heads to the tensor memory accelerator (compute capability 9.0), which copies tiles of
// `rows` tokens and 64 channels of a head, 128 bytes a row, permuted as wgmma.cuh says. Coordinates
// are channel, token, head in its group, group, sample. Throws DeviceError if the driver refuses.
// REQUIRES: 16-bit elements, at least one of each extent, at most 256 rows, address and strides
// that are multiples of 16 bytes.
CUtensorMap tensor_map(const ConstHeadsView& x, int rows);

}  // namespace megatron::kernels::cuda

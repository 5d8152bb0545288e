#pragma once

#include "megatron/device/device.h"

// In what GPUs differ, for kernels that choose by it. MEGATRON_GPU_AS=8.6 makes them choose as they
// do on a GPU of compute capability 8.6, as far as this one can do the same; 8.0, 8.9, 9.0, 10.0
// and 12.0 are the others. Everything throws ConfigError for another value.
namespace megatron::kernels::cuda {

// What a block may have on every GPU since compute capability 8.0, in bytes.
inline constexpr int kLeastSharedBytes = 99 * 1024;

// The bytes of shared memory that a block may have: 99 KiB on compute capability 8.6, 8.9 and 12.0,
// 163 KiB on 8.0, 227 KiB on 9.0 and 10.0.
int max_shared_bytes(Device device);

// May a kernel that has clusters of blocks run? They came with compute capability 9.0, for the GPU
// and for the code: PTX of 8.0 has none on any GPU. The driver is asked once for each kernel and
// device. Thread safe.
bool has_clusters(const void* kernel, Device device);

// Allows a kernel `bytes` of dynamic shared memory on a device, which must be the thread's current
// one. The driver is asked once for each kernel and device. Thread safe.
void allow_shared_bytes(const void* kernel, int bytes, Device device);

}  // namespace megatron::kernels::cuda

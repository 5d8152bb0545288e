#pragma once

#include "megatron/device/device.h"

namespace megatron::kernels::cuda {

// What a block may have on every GPU since compute capability 8.0, in bytes.
inline constexpr int kLeastSharedBytes = 99 * 1024;

// The bytes of shared memory that a block may have on a device: 99 KiB on compute capability 8.6,
// 8.9 and 12.0, 163 KiB on 8.0, 227 KiB on 9.0 and 10.0. MEGATRON_GPU_AS=8.6 lowers the answer to
// that of 8.6, and so on: kernels then choose as they do on such a GPU. Throws ConfigError for a
// capability that is not in this list.
int max_shared_bytes(Device device);

// Allows a kernel `bytes` of dynamic shared memory on a device, which must be the thread's current
// one. The driver is asked once for each kernel and device. Thread safe.
void allow_shared_bytes(const void* kernel, int bytes, Device device);

}  // namespace megatron::kernels::cuda

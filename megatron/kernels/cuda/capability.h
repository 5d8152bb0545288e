#pragma once

#include "megatron/device/device.h"

// Device capabilities that select kernels. MEGATRON_GPU_AS=8.6 selects them as on a GPU of compute
// capability 8.6, as far as this GPU supports them; 8.0, 8.9, 9.0, 10.0 and 12.0 are the other
// values. Every function throws ConfigError for any other.
namespace megatron::kernels::cuda {

// Shared memory that a block may have on every GPU since compute capability 8.0, in bytes.
inline constexpr int kMinSharedBytes = 99 * 1024;

// Shared memory that a block may have, in bytes: 99 KiB on compute capability 8.6, 8.9 and 12.0,
// 163 KiB on 8.0, 227 KiB on 9.0 and 10.0.
int max_shared_bytes(Device device);

int multiprocessors(Device device);

// True if a kernel with thread block clusters runs. Clusters need compute capability 9.0 of both
// the GPU and the code: PTX of 8.0 has none on any GPU. Queries the driver once for each kernel and
// device. Thread safe.
bool has_clusters(const void* kernel, Device device);

// True if a kernel with wgmma instructions (wgmma.cuh) runs. They need code for 9.0a, which only a
// GPU of compute capability 9.0 runs. REQUIRES: in that code the kernel has static shared memory;
// in any other it is empty. Queries the driver once for each kernel and device. Thread safe.
bool has_warpgroups(const void* kernel, Device device);

// Allows a kernel `bytes` of dynamic shared memory on a device, which must be the thread's current
// one. Queries the driver once for each kernel and device. Thread safe.
void allow_shared_bytes(const void* kernel, int bytes, Device device);

}  // namespace megatron::kernels::cuda

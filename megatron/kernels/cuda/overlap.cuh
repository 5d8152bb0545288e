#pragma once

#include <cuda_runtime.h>

#include <array>

#include "megatron/device/cuda/check.h"
#include "megatron/kernels/cuda/launch.cuh"

// Kernels of one stream that overlap (programmatic dependent launch, compute capability 9.0). A
// kernel that launch_overlapped() queues may start while earlier kernels run. Until it calls
// wait_for_earlier_kernels() it reads only memory that no kernel before it in the same pass writes,
// such as keys of earlier steps, and writes nothing. Every thread that reads or writes other memory
// calls it first, so that also the kernels after it see the results of the kernels before it.
namespace megatron::kernels::cuda {

// All results of the stream's earlier kernels are visible after it.
__device__ __forceinline__ void wait_for_earlier_kernels() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

// The next kernel of the stream may start when all blocks have called this or ended.
__device__ __forceinline__ void let_next_kernel_start() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

struct OverlapLaunch {
  dim3 grid, block;
  unsigned shared_bytes = 0;
  unsigned cluster = 1;  // blocks of a cluster along x; more than 1 needs has_clusters()
  bool overlaps = true;  // needs a GPU and code with clusters, too
};

template <class... Parameters, class... Arguments>
void launch_overlapped(void (*kernel)(Parameters...), const OverlapLaunch& launch, Stream stream,
                       Arguments... arguments) {
  std::array<cudaLaunchAttribute, 2> attributes{};
  unsigned count = 0;
  if (launch.overlaps) {
    attributes[count].id = cudaLaunchAttributeProgrammaticStreamSerialization;
    attributes[count++].val.programmaticStreamSerializationAllowed = 1;
  }
  if (launch.cluster > 1) {
    attributes[count].id = cudaLaunchAttributeClusterDimension;
    attributes[count++].val.clusterDim = {launch.cluster, 1, 1};
  }
  cudaLaunchConfig_t config{};
  config.gridDim = launch.grid;
  config.blockDim = launch.block;
  config.dynamicSmemBytes = launch.shared_bytes;
  config.stream = native(stream);
  config.attrs = attributes.data();
  config.numAttrs = count;
  MG_CUDA(cudaLaunchKernelEx(&config, kernel, Parameters(arguments)...));
}

}  // namespace megatron::kernels::cuda

#pragma once

// MG_HOST_DEVICE marks a function that device code may call too; MG_DEVICE a function of device
// code in CUDA sources, and of the host in all others.
#if defined(__CUDACC__)
#define MG_HOST_DEVICE __host__ __device__
#define MG_DEVICE __device__
#else
#define MG_HOST_DEVICE
#define MG_DEVICE
#endif

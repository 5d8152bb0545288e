#pragma once

#include <nccl.h>

#include <string>

namespace megatron::comm::nccl {

// NVIDIA's collectives, loaded when the first group of GPUs communicates.
struct Library {
  decltype(&ncclGetVersion) get_version;
  decltype(&ncclGetUniqueId) get_unique_id;
  decltype(&ncclCommInitRankConfig) init_rank;
  decltype(&ncclCommFinalize) finalize;
  decltype(&ncclCommDestroy) destroy;
  decltype(&ncclCommAbort) abort;
  decltype(&ncclCommGetAsyncError) get_async_error;
  decltype(&ncclGetErrorString) error_string;
  decltype(&ncclGetLastError) last_error;
  decltype(&ncclGroupStart) group_start;
  decltype(&ncclGroupEnd) group_end;
  decltype(&ncclAllReduce) all_reduce;
  decltype(&ncclAllGather) all_gather;
  decltype(&ncclReduceScatter) reduce_scatter;
  decltype(&ncclBroadcast) broadcast;
  decltype(&ncclSend) send;
  decltype(&ncclRecv) recv;
};

// Throws DeviceError if libnccl.so.2 is missing or too old.
//
// NCCL uses NVLink multicast (NVLS) only if the user sets NCCL_NVLS_ENABLE: on shared hosts it can
// put GPUs out of service. This function sets the variable before it loads the library.
const Library& library();

}  // namespace megatron::comm::nccl

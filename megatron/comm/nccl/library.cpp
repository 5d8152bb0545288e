#include "megatron/comm/nccl/library.h"

#include <fmt/format.h>
#include <stdlib.h>

#include <cstdlib>

#include "megatron/core/error.h"
#include "megatron/core/log.h"
#include "megatron/device/lazy_library.h"

namespace megatron::comm::nccl {
namespace {

constexpr int kOldestVersion = 21800;  // the first with non-blocking communicators

Library load() {
  const char* const nvls = std::getenv("NCCL_NVLS_ENABLE");
  if (nvls == nullptr) {
    ::setenv("NCCL_NVLS_ENABLE", "0", 0);
    debug("NCCL_NVLS_ENABLE=0: NVLink multicast is off unless the variable is set");
  } else if (std::string(nvls) != "0") {
    warn(fmt::format("NCCL_NVLS_ENABLE={}: NVLink multicast is on", nvls));
  }
  const LazyLibrary file(
      "libnccl.so.2",
      "install NCCL 2.18 or newer (with pip: nvidia-nccl-cu13), or name its folder in "
      "MEGATRON_LIBRARY_PATH");
  Library functions{};
  const auto find = [&file]<class F>(F& function, const char* name) {
    function = file.function<F>(name);
  };
  find(functions.get_version, "ncclGetVersion");
  find(functions.get_unique_id, "ncclGetUniqueId");
  find(functions.init_rank, "ncclCommInitRankConfig");
  find(functions.finalize, "ncclCommFinalize");
  find(functions.destroy, "ncclCommDestroy");
  find(functions.abort, "ncclCommAbort");
  find(functions.get_async_error, "ncclCommGetAsyncError");
  find(functions.error_string, "ncclGetErrorString");
  find(functions.last_error, "ncclGetLastError");
  find(functions.group_start, "ncclGroupStart");
  find(functions.group_end, "ncclGroupEnd");
  find(functions.all_reduce, "ncclAllReduce");
  find(functions.all_gather, "ncclAllGather");
  find(functions.reduce_scatter, "ncclReduceScatter");
  find(functions.broadcast, "ncclBroadcast");
  find(functions.send, "ncclSend");
  find(functions.recv, "ncclRecv");
  int version = 0;
  functions.get_version(&version);
  if (version < kOldestVersion) {
    throw DeviceError(
        fmt::format("libnccl.so.2 has version {}, at least {} is needed; install a "
                    "newer one",
                    version, kOldestVersion));
  }
  debug(fmt::format("NCCL {}.{}.{}", version / 10000, version / 100 % 100, version % 100));
  return functions;
}

}  // namespace

const Library& library() {
  static const Library functions = load();
  return functions;
}

}  // namespace megatron::comm::nccl

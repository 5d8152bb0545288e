#pragma once

#include <memory>

#include "megatron/comm/transport.h"

namespace megatron::comm::nccl {

// NCCL between the GPUs of a group's ranks, which are threads or processes. Called by all members:
// `host` carries the identifier they meet by, and outlives the result. Throws CommError when a
// member does not come or NCCL refuses, DeviceError when there is no NCCL.
//
// The host never waits in NCCL: communicators do not block, and a watchdog (watchdog.h) aborts
// those of this rank when a collective is not done in time or another rank has failed. Streams then
// run on, over what memory holds, and the next call throws CommError with the reason.
std::unique_ptr<DeviceTransport> make_nccl_transport(Transport& host, Device device);

}  // namespace megatron::comm::nccl

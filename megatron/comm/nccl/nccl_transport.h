#pragma once

#include <memory>

#include "megatron/comm/transport.h"

namespace megatron::comm::nccl {

// NCCL between the GPUs of a group's ranks, which are threads or processes. All members call it.
// `host` carries the identifier by which they meet, and outlives the result. Throws CommError if a
// member does not arrive or NCCL fails, DeviceError if there is no NCCL.
//
// The host never waits in NCCL: communicators do not block, and a watchdog (watchdog.h) aborts
// those of this rank if a collective is late or another rank has failed. Streams then run on with
// undefined data, and the next call throws CommError with the reason.
std::unique_ptr<DeviceTransport> make_nccl_transport(Transport& host, Device device);

}  // namespace megatron::comm::nccl

#pragma once

#include <memory>

#include "megatron/comm/transport.h"

namespace megatron::comm::nccl {

// NCCL between the GPUs of a group's ranks, which are threads or processes. All members call it.
// `host` broadcasts NCCL's unique id, and outlives the result. Throws CommError if a member does
// not arrive or NCCL fails, DeviceError without NCCL.
//
// The host never blocks in NCCL: communicators are non-blocking, and a watchdog (watchdog.h) aborts
// those of this rank if a collective exceeds the time-out or another rank has failed. Streams then
// continue with undefined data, and the next call throws CommError with the reason.
std::unique_ptr<DeviceTransport> make_nccl_transport(Transport& host, Device device);

}  // namespace megatron::comm::nccl

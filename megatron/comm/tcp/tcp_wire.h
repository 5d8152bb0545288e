#pragma once

#include <chrono>
#include <memory>

#include "megatron/comm/launch_environment.h"
#include "megatron/comm/messages/wire.h"

namespace megatron::comm::tcp {

// Messages over a TCP connection between every two processes, for jobs without MPI. A process that
// ends without a farewell is noticed by all others at once. Throws CommError when one does not
// come.
std::unique_ptr<Wire> make_tcp_wire(const LaunchEnvironment& place,
                                    std::chrono::milliseconds timeout);

}  // namespace megatron::comm::tcp

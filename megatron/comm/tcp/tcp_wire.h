#pragma once

#include <chrono>
#include <memory>

#include "megatron/comm/launch_environment.h"
#include "megatron/comm/messages/wire.h"
#include "megatron/comm/secret.h"

namespace megatron::comm::tcp {

// Messages over TCP, for jobs without MPI. After the rendezvous at rank 0 (tcp/rendezvous.h) each
// process keeps that connection for reports of failures and of work, which rank 0 forwards to all
// others. Two processes connect when one first sends to the other or waits for it. Throws as
// join_rendezvous().
std::unique_ptr<Wire> make_tcp_wire(const LaunchEnvironment& place, const Secret& secret,
                                    std::chrono::milliseconds timeout);

}  // namespace megatron::comm::tcp

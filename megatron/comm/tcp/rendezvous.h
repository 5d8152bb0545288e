#pragma once

#include <chrono>
#include <vector>

#include "megatron/comm/launch_environment.h"
#include "megatron/comm/tcp/sockets.h"

namespace megatron::comm::tcp {

// Connects every two processes of a job. They meet at rank 0, which waits at place.master_address,
// compares what they are and tells each where the others wait. Returns a socket for each rank, none
// for this one; they do not block. Connections that are not of this job are dropped.
//
// Throws ConfigError on rank 0 when processes are not of one job (numbers of ranks that differ, two
// of the same rank, programs that differ), with all that is wrong; it is a CommError with that text
// on the others. Throws CommError that names who did not come in time.
std::vector<Socket> connect_all(const LaunchEnvironment& place, std::chrono::milliseconds timeout);

}  // namespace megatron::comm::tcp

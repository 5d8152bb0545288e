#pragma once

#include <memory>

#include "megatron/comm/messages/wire.h"

namespace megatron::comm::mpi {

// Messages by MPI between the processes of MPI_COMM_WORLD. Initialises MPI: call once in a process.
// Throws CommError.
std::unique_ptr<Wire> make_mpi_wire();

}  // namespace megatron::comm::mpi

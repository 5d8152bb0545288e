#pragma once

#include "megatron/cli/command.h"
#include "megatron/launch/supervisor.h"
#include "megatron/settings/training_args.h"

namespace megatron::cli {

// run_supervised() with the time-out and the checkpoints of the command's arguments. Prints a
// CommError and returns its exit code.
int supervise(launch::Supervision job, const TrainingArgs& args);

// The same for a script of the package megatron_cpp, job.command, which the interpreter
// MEGATRON_PYTHON, else python3, runs on every rank.
int supervise_script(launch::Supervision job);

// Starts the ranks of this host as processes and returns the exit code. `job.command` may be the
// name of a script that selects a command. A command that does not run on several ranks runs in one
// process. Throws ConfigError.
int launch_processes(launch::Supervision job, Commands commands);

}  // namespace megatron::cli

#include "megatron/cli/launch_processes.h"

#include <fmt/format.h>

#include <algorithm>

#include "megatron/cli/ranks.h"
#include "megatron/core/error.h"
#include "megatron/core/exit_code.h"
#include "megatron/core/log.h"
#include "megatron/frontends/scripts.h"
#include "megatron/launch/job.h"
#include "megatron/launch/supervisor.h"
#include "megatron/settings/training_args.h"

namespace megatron::cli {
namespace {

// Runs the command or script as a process without ranks.
int run_alone(const std::string& script, const std::vector<std::string>& flags) {
  std::vector<std::string> words = {launch::own_program(), script};
  words.insert(words.end(), flags.begin(), flags.end());
  return launch::run_job({{.name = script, .speaker = "", .words = words, .environment = {}}})
      .exit_code;
}

}  // namespace

int launch_processes(const ProcessLaunch& launch, Commands commands) {
  const std::string command = frontends::command_of_script(launch.script);
  const bool wants_help = std::any_of(launch.words.begin(), launch.words.end(), [](const auto& w) {
    return w == "--help" || w == "-h" || w == "--help-all";
  });
  if (wants_help) return run_alone(launch.script, launch.words);
  const Command* const found = find_command(command, commands);
  if (found == nullptr || !found->runs_on_ranks()) {
    if (launch.nproc_per_node * launch.nnodes > 1) {
      warn(fmt::format("{} does not run on several ranks: it runs in one process", command));
    }
    return run_alone(launch.script, launch.words);
  }
  std::vector<std::string> problems;  // the command reads the flags again and reports them
  const TrainingArgs args = parsed_flags(launch.words, problems);
  try {
    return launch::run_supervised({.program = launch::own_program(),
                                   .command = command,
                                   .words = launch.words,
                                   .nproc_per_node = launch.nproc_per_node,
                                   .nnodes = launch.nnodes,
                                   .node_rank = launch.node_rank,
                                   .are_threads = false,
                                   .hostfile = launch.hostfile,
                                   .exported = launch.exported,
                                   .master_addr = launch.master_addr,
                                   .master_port = launch.master_port,
                                   .timeout = timeout_of(args),
                                   .max_restarts = launch.max_restarts,
                                   .save = args.checkpoint.save,
                                   .has_load = !args.checkpoint.load.empty()});
  } catch (const CommError& error) {
    print_error(error.what());
    return kExitFault;
  }
}

}  // namespace megatron::cli

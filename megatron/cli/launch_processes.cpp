#include "megatron/cli/launch_processes.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <utility>

#include "megatron/cli/ranks.h"
#include "megatron/core/error.h"
#include "megatron/core/exit_code.h"
#include "megatron/core/log.h"
#include "megatron/frontends/scripts.h"
#include "megatron/launch/job.h"

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

int supervise(launch::Supervision job, const TrainingArgs& args) {
  job.timeout = timeout_of(args);
  job.save = args.checkpoint.save;
  job.has_load = !args.checkpoint.load.empty();
  job.has_local_checkpoints = args.checkpoint.non_persistent_ckpt_type == NonPersistentType::kLocal;
  job.keeps_memory =
      job.has_local_checkpoints && args.checkpoint.non_persistent_local_ckpt_dir.empty();
  try {
    return launch::run_supervised(job);
  } catch (const CommError& error) {
    print_error(error.what());
    return kExitFault;
  }
}

int supervise_script(launch::Supervision job) {
  const char* const python = std::getenv("MEGATRON_PYTHON");
  job.program = python != nullptr ? python : "python3";
  job.are_threads = false;
  return supervise(std::move(job), TrainingArgs());
}

int launch_processes(launch::Supervision job, Commands commands) {
  if (frontends::imports_package(job.command)) return supervise_script(std::move(job));
  const std::string command = frontends::command_of_script(job.command);
  const bool wants_help = std::any_of(job.words.begin(), job.words.end(), [](const auto& w) {
    return w == "--help" || w == "-h" || w == "--help-all";
  });
  if (wants_help) return run_alone(job.command, job.words);
  const Command* const found = find_command(command, commands);
  if (found == nullptr || !found->runs_on_ranks()) {
    if (job.world_size() > 1) {
      warn(fmt::format("{} does not run on several ranks: it runs in one process", command));
    }
    return run_alone(job.command, job.words);
  }
  std::vector<std::string> problems;  // the command reads the flags again and reports them
  const TrainingArgs args = parsed_flags(job.words, problems);
  job.program = launch::own_program();
  job.command = command;
  return supervise(std::move(job), args);
}

}  // namespace megatron::cli

#pragma once

#include <functional>
#include <map>
#include <string>
#include <vector>

namespace megatron::launch {

// A process of a job, before it is started.
struct JobProcess {
  std::string name;                // "rank 3": who it is in messages
  std::string speaker;             // what its own messages begin with; empty: nothing
  std::vector<std::string> words;  // program and arguments
  std::map<std::string, std::string> environment;  // besides this process's
};

struct JobOutcome {
  int exit_code = 0;      // of the process that failed first; 128 + number where a signal killed it
  std::string reason;     // of the failure, a line
  bool is_final = false;  // another attempt makes no sense: a signal to this process asked for it
  bool is_released = false;  // what failed is on another host
};

// Starts all processes and waits for their end. Standard output is theirs. Lines of standard error
// are passed on, those of the first process as they are, of others with the name before it; but of
// "error: ..." lines, each is printed once, and those of processes that were only released
// (kExitReleased) when there is nothing better. When a process fails, the others have a few seconds
// to say what they saw and are then killed; when this process is killed, so are they, and a moment
// after `has_failed_elsewhere` (asked now and then; none: never) is true. SIGTERM, SIGINT and
// SIGHUP to this process are passed on. A standard error that cannot be written ends nothing: from
// the first call on, this process ignores SIGPIPE.
//
// Of several threads, only the one that calls it may start or await processes.
JobOutcome run_job(const std::vector<JobProcess>& processes,
                   const std::function<bool()>& has_failed_elsewhere = {});

}  // namespace megatron::launch

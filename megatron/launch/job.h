#pragma once

#include <functional>
#include <map>
#include <string>
#include <vector>

namespace megatron::launch {

// A process to start.
struct JobProcess {
  std::string name;                                // "rank 3", for messages
  std::string speaker;                             // prefix of its own messages; may be empty
  std::vector<std::string> words;                  // program and arguments
  std::map<std::string, std::string> environment;  // added to this process's
};

struct JobOutcome {
  int exit_code = 0;         // of the process that failed first; 128 + signal number if killed
  std::string reason;        // of the failure, one line
  bool is_final = false;     // do not restart: this process got a signal to end
  bool is_released = false;  // the failure was on another host
  bool is_lost = false;      // a host is gone
};

// Starts all processes and waits for their end. They inherit standard output. Forwards lines of
// standard error, unchanged from the first process, prefixed with the name from others; prints each
// distinct "error: ..." line once, and those of processes that were only released (kExitReleased)
// only if there are no others. When a process fails, the others have a few seconds to report and
// are then killed. They are also killed with this process, and shortly after `has_failed_elsewhere`
// (polled; may be empty) returns true. Forwards SIGTERM, SIGINT and SIGHUP. Ignores failures to
// write standard error: from the first call on, this process ignores SIGPIPE.
//
// Only the calling thread may start or await processes.
JobOutcome run_job(const std::vector<JobProcess>& processes,
                   const std::function<bool()>& has_failed_elsewhere = {});

}  // namespace megatron::launch

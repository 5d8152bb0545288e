#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "megatron/comm/secret.h"
#include "megatron/comm/tcp/rendezvous.h"
#include "megatron/launch/job.h"

namespace megatron::launch {

// One of the hosts of a job.
struct HostPlace {
  int64_t host = 0;  // --node-rank
  int64_t num_hosts = 1;
  std::string master_address;  // of host 0
  int master_port = 0;
  int64_t nproc_per_node = 1;  // the same on all hosts, as is:
  int64_t max_restarts = 0;
  int64_t restarts = 0;  // so far
};

// Coordinates the launchers of a job's hosts. After a rendezvous at host 0 (comm/tcp/rendezvous.h)
// they end or restart together; the outcome of the job is that of the host that failed first.
//
//   host i -> host 0   after each attempt, how its ranks ended
//   host 0 -> host i   "stop" once ranks have failed; how the attempt ended
class Hosts {
 public:
  // Returns when all hosts have joined. Throws ConfigError, on all hosts, if their settings
  // conflict; CommError, which names the missing hosts, or the foreign program at host 0's port.
  // `ranks_port` is a port for rank 0 on host 0.
  Hosts(const HostPlace& place, int ranks_port, const comm::Secret& secret,
        std::chrono::milliseconds timeout);
  ~Hosts();

  // The rendezvous of the ranks, and their secret: equal on all hosts, and never sent.
  int ranks_port() const { return ranks_port_; }
  const comm::Secret& ranks_secret() const { return ranks_secret_; }
  // The restarts so far, of the host with the most: another one may have been replaced.
  int64_t restarts() const { return restarts_; }
  // For polling while ranks run: true if ranks of another host have failed.
  bool has_failed_elsewhere();
  // Combines this host's outcome of an attempt with those of all hosts. Waits for the others:
  // without limit if nothing has failed, otherwise some seconds.
  JobOutcome agreed(const JobOutcome& here);

 private:
  struct Link;

  // Processes received messages.
  void read_links();
  void stop_others();

  bool is_first_ = true;
  int ranks_port_ = 0;
  comm::Secret ranks_secret_;
  int64_t restarts_ = 0;
  std::vector<Link> links_;
  bool has_failed_elsewhere_ = false;
  bool has_told_to_stop_ = false;
};

// The job's outcome, from those of its hosts. REQUIRES: at least one.
JobOutcome outcome_of_all(const std::vector<JobOutcome>& outcomes);

}  // namespace megatron::launch

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
};

// The launches of all hosts of a job. They meet at host 0 (comm/tcp/rendezvous.h), and end or start
// again together: what becomes of the job is what became of the host where it failed first.
//
//   host i -> host 0   after each attempt, how its ranks ended
//   host 0 -> host i   "stop" once ranks have failed; how the attempt ended
class Hosts {
 public:
  // Returns when all are there. Throws ConfigError, on all hosts, when they do not fit together;
  // CommError that names who did not come in time, or what is at host 0's port instead.
  // `ranks_port` is where rank 0 may wait, on host 0.
  Hosts(const HostPlace& place, int ranks_port, const comm::Secret& secret,
        std::chrono::milliseconds timeout);
  ~Hosts();

  // Where the ranks meet, and the secret of this job's ranks: equal on all hosts, and never sent.
  int ranks_port() const { return ranks_port_; }
  const comm::Secret& ranks_secret() const { return ranks_secret_; }
  // Poll while ranks run: whether those of another host have failed.
  bool has_failed_elsewhere();
  // How this attempt ended on all hosts, given how it ended here. Waits for the others: without
  // limit while nothing has failed, else some seconds.
  JobOutcome agreed(const JobOutcome& here);

 private:
  struct Link;

  // Takes in what has come.
  void read_links();
  void stop_others();

  bool is_first_ = true;
  int ranks_port_ = 0;
  comm::Secret ranks_secret_;
  std::vector<Link> links_;
  bool has_failed_elsewhere_ = false;
  bool has_told_to_stop_ = false;
};

// Which of the outcomes of an attempt is that of the job. REQUIRES: one at least.
JobOutcome outcome_of_all(const std::vector<JobOutcome>& outcomes);

}  // namespace megatron::launch

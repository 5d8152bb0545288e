#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace megatron::frontends {

// A host and the GPUs on which ranks run.
struct HostSlots {
  std::string name;
  std::vector<int64_t> slots;

  bool operator==(const HostSlots&) const = default;
};

// Reads DeepSpeed's hostfile: lines "name slots=N", blank lines, and comments after '#'. Compat:
// ignores the rest of a line after the number. Throws FormatError for another line, a host that
// appears twice, and a file without hosts.
std::vector<HostSlots> read_hostfile(const std::string& text, const std::string& source);

// Applies --include or --exclude, "NODE[:slot,slot...][@NODE...]"; empty: not given. A node without
// slots means all of them. The order of hosts and slots is kept; hosts without slots are dropped.
// Throws ConfigError.
std::vector<HostSlots> filtered(const std::vector<HostSlots>& hosts, const std::string& include,
                                const std::string& exclude);

// Applies --num_nodes (the first ones) and --num_gpus (slots from 0); values below 1 mean all.
std::vector<HostSlots> limited(std::vector<HostSlots> hosts, int64_t num_nodes, int64_t num_gpus);

// The options of DeepSpeed's launcher that select hosts.
struct HostChoice {
  std::string include;
  std::string exclude;
  int64_t num_nodes = -1;
  int64_t num_gpus = -1;
};

// The hosts of a job without a hostfile: only this machine, with `num_gpus` slots, at least one.
// `visible_devices` is CUDA_VISIBLE_DEVICES, used if no option selects GPUs; it may be empty.
// Throws ConfigError.
std::vector<HostSlots> local_hosts(const HostChoice& choice, int64_t num_gpus,
                                   const std::string& visible_devices);
// The same for the hosts of a hostfile.
std::vector<HostSlots> chosen_hosts(const std::vector<HostSlots>& hosts, const HostChoice& choice);

}  // namespace megatron::frontends

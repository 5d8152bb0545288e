#include "megatron/cli/ranks.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <chrono>
#include <deque>
#include <new>
#include <optional>
#include <vector>

#include "megatron/cli/agreement.h"
#include "megatron/comm/launch_environment.h"
#include "megatron/comm/processes.h"
#include "megatron/comm/threads.h"
#include "megatron/core/error.h"
#include "megatron/core/exit_code.h"
#include "megatron/core/host_name.h"
#include "megatron/core/log.h"
#include "megatron/core/parts.h"
#include "megatron/core/terminate.h"
#include "megatron/device/allocator.h"
#include "megatron/device/stream.h"
#include "megatron/run/collectively.h"
#include "megatron/settings/training_args.h"

namespace megatron::cli {
namespace {

int run(const Command& command, Words words, const comm::Group& world) {
  return std::get<RunOnRanks>(command.run)(words, world);
}

// Ignores problems of the words; the command reports them.
std::chrono::minutes timeout_of(Words words) {
  std::vector<std::string> problems;
  return cli::timeout_of(parsed_flags(words, problems));
}

int run_as_rank(const Command& command, Words words, const comm::LaunchEnvironment& place) {
  const auto say = [&](const char* message) {
    print_error(place.rank == 0 ? std::string(message)
                                : speaker(place.rank, host_name()) + ": " + message);
  };
  try {
    int code = 0;
    const auto run_in = [&](const comm::Group& world) {
      try {
        code = run(command, words, world);
      } catch (
          const CommonConfigError& error) {  // all ranks stop together: not a failure of one rank
        if (place.rank == 0) print_error(error.what());
        code = kExitInput;
      }
    };
    comm::run_process_rank(place, run_in, {.timeout = timeout_of(words)});
    return code;
  } catch (const comm::ReleasedError& error) {
    say(error.what());
    return kExitReleased;
  } catch (const CommError& error) {
    say(error.what());
  } catch (const DeviceError& error) {
    say(error.what());
  } catch (const Error& error) {
    say(error.what());
    return kExitInput;
  } catch (const std::bad_alloc&) {
    say(kOutOfMemory);
    return kExitInput;
  } catch (const std::exception& error) {
    say(error.what());
  }
  return kExitFault;
}

}  // namespace

const Command& rank_command(const std::string& name, Commands commands) {
  const Command* const found = find_command(name, commands);
  if (found != nullptr && !found->is_built()) refuse_missing(found->name, found->option);
  if (found != nullptr && found->runs_on_ranks()) return *found;
  std::vector<std::string_view> names;
  for (const Command& command : commands) {
    if (command.runs_on_ranks()) names.push_back(command.name);
  }
  throw ConfigError(fmt::format("launch: {} does not run on several ranks; commands that do: {}",
                                name, fmt::join(names, ", ")));
}

std::deque<MemoryPool> pools_of_shared_gpus(int ranks) {
  std::deque<MemoryPool> pools;
  const int gpus = num_cuda_devices();
  for (int rank = 0; rank < ranks && 0 < gpus && gpus < ranks; ++rank) {
    pools.emplace_back(allocator_of({DeviceType::kCuda, rank % gpus}));
  }
  return pools;
}

int run_on_threads(const Command& command, Words words, int count) {
  std::vector<int> codes(static_cast<size_t>(count), 0);
  const std::deque<MemoryPool> pools = pools_of_shared_gpus(count);
  try {
    comm::run_ranks(count,
                    [&](const comm::Group& world) {
                      const auto rank = static_cast<size_t>(world.rank());
                      const PoolScope scope(pools.empty() ? nullptr : &pools[rank]);
                      codes[rank] = run(command, words, world);
                    },
                    {.timeout = timeout_of(words)});
  } catch (const CommError& error) {
    print_error(error.what());
    return kExitFault;
  } catch (const DeviceError& error) {
    print_error(error.what());
    return kExitFault;
  }
  return *std::max_element(codes.begin(), codes.end());
}

int run_where_placed(const Command& command, Words words) {
  const std::optional<comm::LaunchEnvironment> place = comm::launch_environment();
  if (!place || place->size == 1) return run(command, words, {});
  return run_as_rank(command, words, *place);
}

std::chrono::minutes timeout_of(const TrainingArgs& args) {
  return std::chrono::minutes(std::max<int64_t>(1, args.parallel.distributed_timeout_minutes));
}

std::string speaker(int rank, const std::string& host) {
  return fmt::format("rank {} on {}", rank, host);
}

}  // namespace megatron::cli

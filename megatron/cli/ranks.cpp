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
#include "megatron/cli/bench.h"
#include "megatron/cli/classify_text.h"
#include "megatron/cli/command.h"
#include "megatron/cli/evaluate.h"
#include "megatron/cli/fill_mask.h"
#include "megatron/cli/finetune.h"
#include "megatron/cli/generate.h"
#include "megatron/cli/pretrain_bert.h"
#include "megatron/cli/pretrain_gpt.h"
#include "megatron/cli/pretrain_retro.h"
#include "megatron/cli/pretrain_t5.h"
#include "megatron/cli/retro_finetune.h"
#include "megatron/cli/retro_generate.h"
#include "megatron/cli/retro_preprocess.h"
#include "megatron/cli/score.h"
#include "megatron/cli/self_test.h"
#include "megatron/cli/serve.h"
#include "megatron/comm/launch_environment.h"
#include "megatron/comm/processes.h"
#include "megatron/comm/threads.h"
#include "megatron/core/error.h"
#include "megatron/core/exit_code.h"
#include "megatron/core/host_name.h"
#include "megatron/core/log.h"
#include "megatron/core/terminate.h"
#include "megatron/device/allocator.h"
#include "megatron/device/stream.h"
#include "megatron/settings/training_args.h"

namespace megatron::cli {
namespace {

constexpr RankCommand kCommands[] = {{"pretrain-gpt", pretrain_gpt},
                                     {"pretrain-prefix-lm", pretrain_prefix_lm},
                                     {"pretrain-bert", pretrain_bert},
                                     {"pretrain-t5", pretrain_t5},
                                     {"pretrain-retro", pretrain_retro},
                                     {"bench", bench},
                                     {"generate", generate_text},
                                     {"serve", serve_model},
                                     {"score", score_text},
                                     {"fill-mask", fill_mask},
                                     {"classify", classify_text},
                                     {"evaluate", evaluate},
                                     {"finetune", finetune},
                                     {"retro-preprocess", retro_preprocess},
                                     {"retro-finetune", retro_finetune},
                                     {"retro-generate", retro_generate},
                                     {"test", self_test}};

// Ignores problems of the words; the command reports them.
std::chrono::minutes timeout_of(std::span<const std::string> words) {
  std::vector<std::string> problems;
  return cli::timeout_of(parsed_flags(words, ModelKind::kGpt, problems));
}

int run_as_rank(const RankCommand& command, std::span<const std::string> words,
                const comm::LaunchEnvironment& place) {
  const auto say = [&](const char* message) {
    print_error(place.rank == 0 ? std::string(message)
                                : speaker(place.rank, host_name()) + ": " + message);
  };
  try {
    int code = 0;
    const auto run = [&](const comm::Group& world) {
      try {
        code = command.run(words, world);
      } catch (
          const CommonConfigError& error) {  // all ranks stop together: not a failure of one rank
        if (place.rank == 0) print_error(error.what());
        code = kExitInput;
      }
    };
    comm::run_process_rank(place, run, {.timeout = timeout_of(words)});
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

const RankCommand* find_command(std::string name) {
  std::replace(name.begin(), name.end(), '_', '-');
  for (const RankCommand& command : kCommands) {
    if (command.name == name) return &command;
  }
  return nullptr;
}

}  // namespace

bool runs_on_ranks(const std::string& typed) { return find_command(typed) != nullptr; }

const RankCommand& rank_command(const std::string& typed) {
  if (const RankCommand* const command = find_command(typed)) return *command;
  std::vector<std::string_view> names;
  for (const RankCommand& command : kCommands) names.push_back(command.name);
  throw ConfigError(fmt::format("launch: {} does not run on several ranks; commands that do: {}",
                                typed, fmt::join(names, ", ")));
}

std::deque<MemoryPool> pools_of_shared_gpus(int ranks) {
  std::deque<MemoryPool> pools;
  const int gpus = num_cuda_devices();
  for (int rank = 0; rank < ranks && 0 < gpus && gpus < ranks; ++rank) {
    pools.emplace_back(allocator_of({DeviceType::kCuda, rank % gpus}));
  }
  return pools;
}

int run_on_threads(const RankCommand& command, std::span<const std::string> words, int count) {
  std::vector<int> codes(static_cast<size_t>(count), 0);
  const std::deque<MemoryPool> pools = pools_of_shared_gpus(count);
  try {
    comm::run_ranks(count,
                    [&](const comm::Group& world) {
                      const auto rank = static_cast<size_t>(world.rank());
                      const PoolScope scope(pools.empty() ? nullptr : &pools[rank]);
                      codes[rank] = command.run(words, world);
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

int run_where_placed(std::span<const std::string> words, const std::string& command) {
  const std::optional<comm::LaunchEnvironment> place = comm::launch_environment();
  if (!place || place->size == 1) return rank_command(command).run(words, {});
  return run_as_rank(rank_command(command), words, *place);
}

std::chrono::minutes timeout_of(const TrainingArgs& args) {
  return std::chrono::minutes(std::max<int64_t>(1, args.parallel.distributed_timeout_minutes));
}

std::string speaker(int rank, const std::string& host) {
  return fmt::format("rank {} on {}", rank, host);
}

}  // namespace megatron::cli

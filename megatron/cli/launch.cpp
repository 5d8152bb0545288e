#include "megatron/cli/launch.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <vector>

#include "megatron/cli/args/training_args.h"
#include "megatron/cli/command.h"
#include "megatron/cli/flag_table.h"
#include "megatron/cli/generate.h"
#include "megatron/cli/pretrain_gpt.h"
#include "megatron/comm/threads.h"
#include "megatron/core/error.h"
#include "megatron/device/stream.h"

namespace megatron::cli {
namespace {

// What can run on several ranks.
struct RankCommand {
  std::string_view name;
  int (*run)(std::span<const std::string> words, const comm::Group& world);
};
constexpr RankCommand kCommands[] = {
    {"pretrain-gpt", pretrain_gpt}, {"generate", generate_text}, {"score", score_text}};

const RankCommand& command_named(const std::string& typed) {
  std::string name = typed;
  std::replace(name.begin(), name.end(), '_', '-');
  std::vector<std::string_view> names;
  for (const RankCommand& command : kCommands) {
    if (command.name == name) return command;
    names.push_back(command.name);
  }
  throw ConfigError(fmt::format("launch: {} does not run on several ranks; commands that do: {}",
                                typed, fmt::join(names, ", ")));
}

}  // namespace

int launch(std::span<const std::string> words) {
  int64_t num_ranks = 0;
  FlagTable flags;
  flags.group("launch");
  flags.add("--nproc-per-node", num_ranks,
            "Ranks on this machine; 0: as many as there are GPUs, or one.");

  // Flags of launch stand before the command, those of the command after it.
  size_t command = 0;
  while (command < words.size() && words[command].starts_with("-")) {
    const bool has_value = words[command].find('=') == std::string::npos &&
                           words[command] != "--help" && words[command] != "-h";
    command += has_value ? 2 : 1;
  }
  command = std::min(command, words.size());
  if (!parse_flags(flags,
                   "usage: megatron launch [flags] <command> [flags of the command]\n\n"
                   "Runs a command on several ranks, threads of one process.",
                   words.first(command))) {
    return 0;
  }
  if (command == words.size()) {
    throw ConfigError(
        "launch: there is no command; for example launch --nproc-per-node 4 "
        "pretrain-gpt --num-layers ...");
  }
  if (num_ranks == 0) num_ranks = std::max(1, num_cuda_devices());
  if (num_ranks < 1) {
    throw ConfigError(fmt::format("--nproc-per-node {} must be at least 1", num_ranks));
  }
  const RankCommand& chosen = command_named(words[command]);
  const std::span<const std::string> rest = words.subspan(command + 1);
  std::vector<std::string> problems;  // every rank reads the flags again and reports them
  const int64_t timeout_minutes = std::max<int64_t>(
      parsed_flags(rest, ModelKind::kGpt, problems).parallel.distributed_timeout_minutes, 1);
  std::vector<int> codes(static_cast<size_t>(num_ranks), 0);
  comm::run_ranks(static_cast<int>(num_ranks),
                  [&](const comm::Group& world) {
                    codes[static_cast<size_t>(world.rank())] = chosen.run(rest, world);
                  },
                  {.timeout = std::chrono::minutes(timeout_minutes)});
  return *std::max_element(codes.begin(), codes.end());
}

}  // namespace megatron::cli

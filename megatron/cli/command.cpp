#include "megatron/cli/command.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <exception>
#include <new>
#include <optional>
#include <vector>

#include "megatron/core/error.h"
#include "megatron/core/log.h"
#include "megatron/settings/edit_distance.h"
#include "megatron/settings/flag_table.h"

namespace megatron::cli {
namespace {

std::string overview(std::span<const Command> commands) {
  size_t width = 0;
  for (const Command& command : commands) width = std::max(width, command.name.size());
  std::string text = "usage: megatron <command> [flags]\n\ncommands:\n";
  for (const Command& command : commands) {
    text += fmt::format("  {:<{}}  {}\n", command.name, width, command.summary);
  }
  return text + "\nmegatron <command> --help lists the flags of a command.";
}

const Command& command_named(std::string_view typed, std::span<const Command> commands) {
  std::string name(typed);
  std::replace(name.begin(), name.end(), '_', '-');
  const Command* nearest = nullptr;
  for (const Command& command : commands) {
    if (command.name == name) return command;
    if (nearest == nullptr ||
        edit_distance(name, command.name) < edit_distance(name, nearest->name)) {
      nearest = &command;
    }
  }
  const bool is_close = nearest != nullptr &&
                        edit_distance(name, nearest->name) <= std::max<size_t>(2, name.size() / 3);
  throw ConfigError(is_close
                        ? fmt::format("{} is not a command; did you mean {}?", typed, nearest->name)
                        : fmt::format("{} is not a command; --help lists them all", typed));
}

}  // namespace

int run_program(int argc, const char* const* argv, std::span<const Command> commands) {
  const std::vector<std::string> words(argv + std::min(argc, 1), argv + argc);
  try {
    if (words.empty()) {
      fmt::print(stderr, "{}\n", overview(commands));
      return 2;
    }
    if (words[0] == "--help" || words[0] == "-h" || words[0] == "help") {
      print_line(overview(commands));
      return 0;
    }
    return command_named(words[0], commands).run(std::span(words).subspan(1));
  } catch (const Error& error) {
    print_error(error.what());
    return 2;
  } catch (const std::bad_alloc&) {
    print_error(kOutOfMemory);
    return 2;
  } catch (const std::exception& error) {
    print_error(error.what());
    return 1;
  }
}

bool parse_flags(FlagTable& flags, std::string_view usage, std::span<const std::string> words) {
  ParsedFlags parsed = flags.parse(words);
  if (parsed.wants_help) {
    print_line(fmt::format("usage: {}\n{}", usage, flags.help()));
    return false;
  }
  for (const std::string& word : parsed.words) {
    parsed.problems.push_back(
        fmt::format("{} belongs to no flag; values follow the name of their flag", word));
  }
  if (!parsed.problems.empty()) throw ConfigError(parsed.problems);
  for (const std::string& flag : parsed.ignored) {
    warn(fmt::format("{} has no effect in this command", flag));
  }
  return true;
}

}  // namespace megatron::cli

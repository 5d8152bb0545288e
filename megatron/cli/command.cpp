#include "megatron/cli/command.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <filesystem>
#include <iterator>
#include <new>
#include <optional>
#include <string>
#include <system_error>
#include <vector>

#include "megatron/cli/ranks.h"
#include "megatron/core/build_id.h"
#include "megatron/core/error.h"
#include "megatron/core/log.h"
#include "megatron/core/parallel_for.h"
#include "megatron/core/parts.h"
#include "megatron/core/printable.h"
#include "megatron/core/signal_cleanup.h"
#include "megatron/core/terminate.h"
#include "megatron/frontends/scripts.h"
#include "megatron/kernels/instruction_set.h"
#include "megatron/settings/edit_distance.h"
#include "megatron/settings/flag_table.h"

namespace megatron::cli {
namespace {

constexpr std::string_view kGroupNames[] = {"data", "training", "inference", "checkpoints",
                                            "launch and machine"};

std::string overview(Commands commands) {
  size_t width = 0;
  for (const Command& command : commands) width = std::max(width, command.name.size());
  std::string text = "usage: megatron <command> [flags]\n";
  for (size_t group = 0; group < std::size(kGroupNames); ++group) {
    std::string lines;
    for (const Command& command : commands) {
      if (command.group != static_cast<CommandGroup>(group) || !command.is_built()) continue;
      lines += fmt::format("  {:<{}}  {}\n", command.name, width, command.summary);
    }
    if (!lines.empty()) text += fmt::format("\n{}:\n{}", kGroupNames[group], lines);
  }
  std::string missing;
  for (const Command& command : commands) {
    if (command.is_built()) continue;
    missing += fmt::format("  {:<{}}  -D{}=ON\n", command.name, width, command.option);
  }
  if (!missing.empty()) text += "\nnot in this build, and what adds them:\n" + missing;
  return text + "\nmegatron <command> --help lists the flags of a command.";
}

const Command& command_named(const std::string& typed, Commands commands) {
  if (const Command* const found = find_command(typed, commands)) return *found;
  const Command* nearest = nullptr;
  for (const Command& command : commands) {
    if (nearest == nullptr ||
        edit_distance(typed, command.name) < edit_distance(typed, nearest->name)) {
      nearest = &command;
    }
  }
  const bool is_close = nearest != nullptr && edit_distance(typed, nearest->name) <=
                                                  std::max<size_t>(2, typed.size() / 3);
  throw ConfigError(is_close
                        ? fmt::format("{} is not a command; did you mean {}?", typed, nearest->name)
                        : fmt::format("{} is not a command; --help lists them all", typed));
}

std::string version() {
  const std::string build = build_id();
  return build.empty() ? fmt::format("megatron {}", MG_VERSION)
                       : fmt::format("megatron {} (build {})", MG_VERSION, build.substr(0, 12));
}

// Replaces a standard stream that the caller closed by a descriptor that fails to read or write.
// Otherwise the next opened file would take its number, and messages would go into that file.
void occupy_standard_descriptors() {
  for (int descriptor = 0; descriptor <= 2; ++descriptor) {
    if (::fcntl(descriptor, F_GETFD) >= 0) continue;
    // The lowest free number is this one.
    if (::open("/dev/null", descriptor == 0 ? O_WRONLY : O_RDONLY) != descriptor) return;
  }
}

// More would fail in the runtime of OpenMP, or make plans for so many threads.
void expect_possible_threads() {
  const char* const asked = std::getenv("OMP_NUM_THREADS");
  if (asked == nullptr || (num_threads() >= 1 && num_threads() <= kMaxThreads)) return;
  throw ConfigError(fmt::format(
      "environment variable OMP_NUM_THREADS is {}, which must be at most {}; lower it or unset it",
      printable(asked), kMaxThreads));
}

int run_command(Words words, Commands commands) {
  if (words.empty() || words[0] == "--help" || words[0] == "-h" || words[0] == "help") {
    print_line(overview(commands));
    return 0;
  }
  if (words[0] == "--version" || words[0] == "version") {
    print_line(version());
    return 0;
  }
  // A script stands for a command, and maybe for one of its tools.
  std::vector<std::string> all = frontends::words_of_script(words[0]);
  all.insert(all.end(), words.begin() + 1, words.end());
  return run_named(all[0], std::span(all).subspan(1), commands);
}

// The reader of the output must learn that a part is missing, even if the command succeeded.
int code_of_output(int code) {
  const bool is_flushed = std::fflush(stdout) == 0;
  if (is_flushed && std::ferror(stdout) == 0) return code;
  print_error(
      "standard output cannot be written, so a part of it is missing; check the disk or the "
      "program "
      "that reads it");
  return code == 0 ? 1 : code;
}

}  // namespace

bool Command::is_built() const {
  const RunAlone* const alone = std::get_if<RunAlone>(&run);
  return alone == nullptr || *alone != nullptr;
}

const Command* find_command(std::string name, Commands commands) {
  std::replace(name.begin(), name.end(), '_', '-');
  const auto found = std::ranges::find(commands, std::string_view(name), &Command::name);
  return found == commands.end() ? nullptr : &*found;
}

int run_named(const std::string& name, Words words, Commands commands) {
  const Command& command = command_named(name, commands);
  if (!command.is_built()) refuse_missing(command.name, command.option);
  const bool wants_help = !words.empty() && (words[0] == "-h" || words[0].starts_with("--help"));
  if (wants_help && !command.example.empty()) {
    print_line(fmt::format("example: megatron {} {}", command.name, command.example));
  }
  if (command.runs_on_ranks()) return run_where_placed(command, words);
  if (const RunOthers* const run = std::get_if<RunOthers>(&command.run)) {
    return (*run)(words, commands);
  }
  return std::get<RunAlone>(command.run)(words);
}

int run_program(int argc, const char* const* argv, Commands commands) {
  occupy_standard_descriptors();
  clean_up_on_signals();
  explain_uncaught_exceptions();
  std::vector<std::string> words;
  if (argc > 0) words = frontends::words_of_link(argv[0]);
  words.insert(words.end(), argv + std::min(argc, 1), argv + argc);
  try {
    words = frontends::words_of_python(words);
    expect_possible_threads();
    kernels::expect_possible_instruction_set();
    return code_of_output(run_command(words, commands));
  } catch (const Error& error) {
    print_error(error.what());
    return 2;
  } catch (const std::bad_alloc&) {
    print_error(kOutOfMemory);
    return 2;
  } catch (const std::filesystem::filesystem_error& error) {
    if (error.code() == std::errc::not_enough_memory) {
      print_error(kOutOfMemory);
      return 2;
    }
    print_error(fmt::format("{}: {}; check the path and its permissions", error.path1().string(),
                            error.code().message()));
    return 2;
  } catch (const std::system_error& error) {
    const bool is_limit = error.code() == std::errc::resource_unavailable_try_again;
    print_error(is_limit
                    ? fmt::format("a thread cannot be started: {}; use fewer ranks or threads, "
                                  "or raise the limit of processes (ulimit -u)",
                                  error.code().message())
                    : std::string(error.what()));
    return 1;
  } catch (const std::exception& error) {
    print_error(error.what());
    return 1;
  }
}

bool parse_flags(FlagTable& flags, std::string_view usage, Words words) {
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
  for (const std::string& warning : parsed.warnings) warn(warning);
  return true;
}

std::vector<std::string> take_leading_words(std::span<const std::string>& words) {
  std::vector<std::string> leading;
  while (!words.empty() && !words.front().starts_with('-')) {
    leading.push_back(words.front());
    words = words.subspan(1);
  }
  return leading;
}

void expect_words(const std::vector<std::string>& leading, size_t least, size_t most,
                  std::string_view usage) {
  if (leading.size() >= least && leading.size() <= most) return;
  const std::string_view first_line = usage.substr(0, usage.find('\n'));
  throw ConfigError(
      fmt::format("{} words stand before the flags; write {}", leading.size(), first_line));
}

}  // namespace megatron::cli

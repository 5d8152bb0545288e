#include "megatron/cli/command.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <filesystem>
#include <new>
#include <optional>
#include <string>
#include <system_error>
#include <vector>

#include "megatron/core/build_id.h"
#include "megatron/core/error.h"
#include "megatron/core/log.h"
#include "megatron/core/parallel_for.h"
#include "megatron/core/printable.h"
#include "megatron/core/signal_cleanup.h"
#include "megatron/core/terminate.h"
#include "megatron/frontends/scripts.h"
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

const Command& command_named(const std::string& typed, std::span<const Command> commands) {
  std::string name = typed;
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

int run_command(std::span<const std::string> words, std::span<const Command> commands) {
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
  return command_named(all[0], commands).run(std::span(all).subspan(1));
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

int run_program(int argc, const char* const* argv, std::span<const Command> commands) {
  occupy_standard_descriptors();
  clean_up_on_signals();
  explain_uncaught_exceptions();
  std::vector<std::string> words;
  if (argc > 0) words = frontends::words_of_link(argv[0]);
  words.insert(words.end(), argv + std::min(argc, 1), argv + argc);
  try {
    words = frontends::words_of_python(words);
    expect_possible_threads();
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
  for (const std::string& warning : parsed.warnings) warn(warning);
  return true;
}

}  // namespace megatron::cli

#pragma once

#include <span>
#include <string>
#include <string_view>

namespace megatron {

class FlagTable;

}  // namespace megatron

namespace megatron::cli {

// One command of the program: `megatron <name> <words>`.
struct Command {
  std::string_view name;
  std::string_view summary;  // its line of `megatron --help`
  // Returns the exit code. Throws Error.
  int (*run)(std::span<const std::string> words);
};

// Runs the command argv[1] and returns the program's exit code: 2 with "error: ..." lines on
// standard error if it threw Error or memory is exhausted, 1 if it threw anything else or standard
// output could not be written. Without a command, or with --help, lists all commands; --version
// prints the program's version.
int run_program(int argc, const char* const* argv, std::span<const Command> commands);

// Sets the fields of `flags`. If the words contain --help, prints `usage` and the flags and returns
// false: the command is done. Throws ConfigError with all problems.
bool parse_flags(FlagTable& flags, std::string_view usage, std::span<const std::string> words);

}  // namespace megatron::cli

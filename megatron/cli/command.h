#pragma once

#include <span>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

namespace megatron {

class FlagTable;
namespace comm {
class Group;
}

}  // namespace megatron

namespace megatron::cli {

struct Command;
using Words = std::span<const std::string>;
using Commands = std::span<const Command>;

// A command returns the exit code and throws Error. It runs in one process, or on every rank of a
// group with the same words, or starts other commands of the table.
using RunAlone = int (*)(Words words);
using RunOnRanks = int (*)(Words words, const comm::Group& world);
using RunOthers = int (*)(Words words, Commands commands);

enum class CommandGroup { kData, kTraining, kInference, kCheckpoints, kMachine };

// One command of the program: `megatron <name> <words>`.
struct Command {
  std::string_view name;
  CommandGroup group;
  std::string_view summary;                           // its line of `megatron --help`
  std::string_view example;                           // words after its name; begins its --help
  std::variant<RunAlone, RunOnRanks, RunOthers> run;  // a null RunAlone: not in this build
  std::string_view option = {};                       // the CMake option that adds it; empty: none

  bool is_built() const;
  bool runs_on_ranks() const { return std::holds_alternative<RunOnRanks>(run); }
};

// The command with that name; `-` and `_` are equal. Null if there is none.
const Command* find_command(std::string name, Commands commands);

// Runs the command of that name. Throws ConfigError if there is none, Unsupported if it is not in
// this build.
int run_named(const std::string& name, Words words, Commands commands);

// Runs the command argv[1] and returns the program's exit code: 2 with "error: ..." lines on
// standard error if it threw Error or memory is exhausted, 1 if it threw anything else or standard
// output could not be written. Without a command, or with --help, lists all commands; --version
// prints the program's version.
int run_program(int argc, const char* const* argv, Commands commands);

// Parses arguments into `flags`. With --help, prints `usage` and the flags and returns false: the
// command is done. Throws ConfigError with all problems.
bool parse_flags(FlagTable& flags, std::string_view usage, Words words);

// The words before the first flag; removes them from `words`.
std::vector<std::string> take_leading_words(std::span<const std::string>& words);
// Throws ConfigError, which shows the usage, unless there are `least` to `most` words.
void expect_words(const std::vector<std::string>& leading, size_t least, size_t most,
                  std::string_view usage);

}  // namespace megatron::cli

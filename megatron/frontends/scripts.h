#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace megatron::frontends {

// The command that does the work of a script of Megatron-LM, Megatron-DeepSpeed or Accelerate's
// examples: "some/path/pretrain_gpt.py" is pretrain-gpt. A word that is no script is returned as it
// is. Throws ConfigError for a script without a command.
std::string command_of_script(const std::string& script);

// The same with the words that follow the command: "find_duplicates.py" is {"corpus",
// "find-duplicates"}.
std::vector<std::string> words_of_script(const std::string& script);

// True for the file of a Python script that imports the package megatron_cpp (docs/python.md): an
// interpreter runs it on every rank.
bool imports_package(const std::string& script);

// A command line of Python without what Python reads of it: options such as -u, and `-m MODULE`, a
// launcher that a command stands for: "-m torch.distributed.launch" is {"launch"}. Other words are
// returned as they are. Throws ConfigError for a module that no command stands for.
std::vector<std::string> words_of_python(std::span<const std::string> words);

// The words that stand for the name of a link to the program: `accelerate-launch` is
// {"accelerate", "launch"}, `torchrun` {"launch"}. Empty for any other name.
std::vector<std::string> words_of_link(std::string_view path);

}  // namespace megatron::frontends

#include "megatron/run/train_step_library.h"

#include <dlfcn.h>
#include <fmt/format.h>

#include <filesystem>
#include <string>
#include <string_view>
#include <utility>

#include "megatron/core/error.h"
#include "megatron/run/train_step.h"

namespace megatron {
namespace {

constexpr const char* kRemedy = "build it again with the headers of this program (docs/library.md)";

// Opens a library for the rest of the program's life: its tasks, and errors that it throws, have
// code in it.
void* opened(const std::string& path) {
  if (!std::filesystem::exists(path)) {
    throw ConfigError(fmt::format(
        "--train-step {}: there is no such file; give the path of a shared library", path));
  }
  const std::string absolute = std::filesystem::absolute(path).string();
  void* library = ::dlopen(absolute.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (library != nullptr) return library;
  const char* reason = ::dlerror();
  throw ConfigError(fmt::format("--train-step {}: cannot be loaded: {}; {}", path,
                                reason == nullptr ? "no reason given" : reason, kRemedy));
}

template <class Function>
Function* function_of(void* library, const char* name, const std::string& path) {
  void* const found = ::dlsym(library, name);
  if (found == nullptr) {
    throw ConfigError(
        fmt::format("--train-step {}: has no function {}; end its source with "
                    "MEGATRON_TRAIN_STEP(make)",
                    path, name));
  }
  return reinterpret_cast<Function*>(found);
}

}  // namespace

std::unique_ptr<TrainTask> make_library_task(const RunConfig& config,
                                             std::shared_ptr<const Tokenizer> tokenizer,
                                             const FinetuneTask::Data* finetune_data) {
  const std::string& path = config.training.train_step;
  void* const library = opened(path);
  const auto interface = function_of<const char*()>(library, "megatron_train_step_interface", path);
  const std::string_view theirs = interface();
  if (theirs != MEGATRON_INTERFACE) {
    throw ConfigError(
        fmt::format("--train-step {}: was built with {}, and this program with {}; {}", path,
                    theirs, MEGATRON_INTERFACE, kRemedy));
  }
  const auto make =
      function_of<TrainTask*(const TrainStepParts*)>(library, "megatron_make_train_task", path);
  const TrainStepArgs args(config.training.train_step_args);
  const TrainStepParts parts{.config = config,
                             .tokenizer = std::move(tokenizer),
                             .args = args,
                             .finetune_data = finetune_data};
  std::unique_ptr<TrainTask> task(make(&parts));
  if (task == nullptr) {
    throw ConfigError(fmt::format("--train-step {}: made no task", path));
  }
  args.expect_all_used();
  return task;
}

}  // namespace megatron

#include "megatron/cli/pretrain.h"

#include <fmt/format.h>

#include <chrono>
#include <utility>

#include "megatron/cli/launcher_settings.h"
#include "megatron/core/error.h"
#include "megatron/core/log.h"
#include "megatron/data/data_paths.h"
#include "megatron/run/train_step_library.h"
#include "megatron/run/training_run.h"

namespace megatron::cli {

std::optional<PreparedRun> begin_pretraining(const std::string& command, ModelKind model,
                                             std::span<const std::string> words,
                                             const comm::Group& world) {
  const auto started = std::chrono::steady_clock::now();
  std::vector<std::string> problems;
  TrainingArgs args = parsed_flags(words, model, problems);
  if (args.wants_help) {
    print_line(training_help(command, args.transformer.kind, args.help_scope));
    return std::nullopt;
  }
  apply_launcher_settings(args, world.size(), problems);
  const DataConfig& data = args.data;
  const bool is_retro = !data.retro_workdir.empty() || !data.retro_project_dir.empty();
  if (args.training.train_step.empty() && !data.mock_data && !is_retro) {
    for (std::string& problem : path_problems(data, args.training.eval_iters > 0)) {
      problems.push_back(std::move(problem));
    }
  }
  return prepare_run(std::move(args), std::move(problems), world, started);
}

bool read_training_words(FlagTable& own, const char* usage, ModelKind model,
                         std::span<const std::string> words, TrainingArgs& args,
                         std::vector<std::string>& problems) {
  std::vector<std::string> rest(words.begin(), words.end());
  const ParsedFlags parsed = own.parse(own.take_own(rest));
  args = parsed_flags(rest, model, problems);
  if (args.wants_help) {
    print_line(fmt::format("usage: {}\n{}\nAll flags of `megatron {} --help`, too.", usage,
                           own.help(), family_of(model).training_command));
    return false;
  }
  problems.insert(problems.end(), parsed.problems.begin(), parsed.problems.end());
  for (const std::string& flag : parsed.ignored) {
    args.warnings.push_back(fmt::format("{} has no effect in this command", flag));
  }
  return true;
}

int pretrain(const std::string& command, ModelKind model, std::span<const std::string> words,
             const comm::Group& world, const MakeTask& make_task) {
  const LogScope on_first(world.rank() == 0);
  const std::optional<PreparedRun> begun = begin_pretraining(command, model, words, world);
  if (!begun) return 0;
  // The task reports an unsupported layout before its memory is planned.
  const std::unique_ptr<TrainTask> task = begun->args.training.train_step.empty()
                                              ? make_task(*begun)
                                              : make_library_task(begun->args, begun->tokenizer);
  check_memory(begun->args, world);
  TrainingRun run(*begun, *task, world);
  run.load(begun->source);
  run.train();
  return 0;
}

}  // namespace megatron::cli

#include "annex/retro/commands/retro_finetune.h"

#include <chrono>
#include <utility>
#include <vector>

#include "annex/retro/commands/dialogue_flags.h"
#include "annex/retro/tasks/dialogue_task.h"
#include "megatron/cli/launcher_settings.h"
#include "megatron/cli/pretrain.h"
#include "megatron/core/log.h"
#include "megatron/run/training_run.h"

namespace megatron::cli {
namespace {

constexpr const char* kRetroFinetuneUsage =
    "megatron retro-finetune --data-folder DIR --data-path WEIGHT NAME ... --load DIR --finetune "
    "[flags]";

std::vector<std::string> problems(const std::string& data_folder, const DialogueFlags& flags,
                                  const TrainingArgs& args) {
  std::vector<std::string> found = cli::problems(flags);
  if (data_folder.empty()) {
    found.emplace_back(
        "--data-folder is required: the folder of the data sets, NAME/NAME_QA_train.json");
  }
  if (args.data.data_path.empty()) {
    found.emplace_back(
        "--data-path is required: names of data sets in --data-folder, each after "
        "its weight");
  }
  if (!args.training.train_step.empty()) {
    found.emplace_back("--train-step has a task of its own; remove it, or use pretrain-gpt");
  }
  return found;
}

}  // namespace

int retro_finetune(std::span<const std::string> words, const comm::Group& world) {
  const auto started = std::chrono::steady_clock::now();
  const LogScope on_first(world.rank() == 0);
  DialogueFlags flags;
  std::string data_folder;
  FlagTable table;
  table.group("data");
  table.add_optional("--data-folder", data_folder,
                     "Folder of the data sets in --data-path: NAME/NAME_QA_train.json, and "
                     "NAME_QA_dev.json to evaluate a single one.");
  add_dialogue_flags(table, flags);
  add_unread_flags(table, flags.without_effect);
  TrainingArgs args;
  std::vector<std::string> found;
  if (!read_training_words(table, kRetroFinetuneUsage, ModelKind::kGpt, words, args, found))
    return 0;
  for (std::string& problem : problems(data_folder, flags, args)) {
    found.push_back(std::move(problem));
  }
  apply_launcher_settings(args, world.size(), found);
  const PreparedRun begun = prepare_run(std::move(args), std::move(found), world, started);

  check_memory(begun.args, world);
  const TransformerConfig& model = begun.args.transformer;
  const DialogueSampleOptions sample =
      flags.sample(model.retro.add_retriever ? PromptVariant::kRetro : PromptVariant::kPlain);
  DialogueTask task(begun.args, begun.tokenizer,
                    {.data_folder = data_folder,
                     .fields = flags.fields(true),
                     .sample = resolved_sample_options(sample, model, *begun.tokenizer),
                     .answer_loss_only = flags.answer_loss_only});
  TrainingRun run(begun, task, world);
  run.load(begun.source);
  run.train();
  return 0;
}

}  // namespace megatron::cli

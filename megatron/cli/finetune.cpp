#include "megatron/cli/finetune.h"
#include "megatron/cli/launcher_settings.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <memory>
#include <utility>

#include "megatron/cli/finetune_run.h"
#include "megatron/core/error.h"
#include "megatron/core/log.h"
#include "megatron/data/data_paths.h"
#include "megatron/models/make_task.h"
#include "megatron/parallel/replicas.h"
#include "megatron/run/collectively.h"
#include "megatron/run/train_step_library.h"

namespace megatron::cli {
namespace {

constexpr const char* kFinetuneUsage =
    "megatron finetune --model_name_or_path DIR --train_file FILE [flags]";

// The kind of the model that the words name. Their problems are for read_words().
ModelKind kind_in(std::span<const std::string> words) {
  FinetuneFlags flags;
  FlagTable table = finetune_flag_table(flags);
  std::vector<std::string> rest(words.begin(), words.end());
  static_cast<void>(table.parse(table.take_own(rest)));
  return named_kind(flags);
}

// Reads the words of the command; false after --help.
bool read_words(std::span<const std::string> words, FinetuneFlags& flags, TrainingArgs& args,
                std::vector<std::string>& problems) {
  const ModelKind kind = collectively([&] { return kind_in(words); });
  FlagTable table = finetune_flag_table(flags);
  if (!read_training_words(table, kFinetuneUsage, kind, words, args, problems)) return false;
  std::vector<std::string> rest(words.begin(), words.end());
  flags.given = table.parse(table.take_own(rest)).given;
  for (std::string& warning : ineffective_flags(flags)) args.warnings.push_back(std::move(warning));
  for (std::string& problem : megatron::cli::problems(flags, kind)) {
    problems.push_back(std::move(problem));
  }
  if (args.data.prefix_lm) {
    problems.emplace_back("--prefix-lm is for pretrain-gpt, not for finetune; remove it");
  }
  const bool is_gpt = is_decoder_only(kind);
  if (!is_gpt && !args.training.train_step.empty() && !flags.megatron_dataset_flag) {
    problems.push_back(fmt::format(
        "--train-step trains a GPT on texts, and the model is a {}; give indexed data with "
        "--megatron_dataset_flag, or remove it",
        name_of(kind)));
  }
  if (!is_gpt && args.transformer.lora_rank > 0) {
    problems.push_back(
        fmt::format("--lora-rank is for a GPT, and the model is a {}; remove it", name_of(kind)));
  }
  return true;
}

// Throws ConfigError for missing files before anything is built.
void expect_data_files(const TrainingArgs& args) {
  if (!args.training.train_step.empty() || args.data.mock_data) return;
  const std::vector<std::string> found = path_problems(args.data, args.training.eval_iters > 0);
  if (!found.empty()) throw ConfigError(found);
}

// Texts are trained on: flags of indexed data have no effect.
void drop_indexed_data(TrainingArgs& args) {
  DataConfig& data = args.data;
  for (const char* dest : {"data_path", "train_data_path", "valid_data_path", "test_data_path",
                           "data_args_path", "per_split_data_args_path", "mock_data"}) {
    if (!args.given.contains(dest)) continue;
    std::string flag = dest;
    std::ranges::replace(flag, '_', '-');
    args.warnings.push_back(
        fmt::format("--{} has no effect without --megatron_dataset_flag: --train_file and "
                    "--dataset_name name the texts",
                    flag));
  }
  data.data_path = data.train_data_path = data.valid_data_path = data.test_data_path = {};
  data.data_args_path.clear();
  data.per_split_data_args_path.clear();
  data.mock_data = false;
}

// The task that the training command of such a model has.
std::unique_ptr<TrainTask> indexed_task(const PreparedRun& begun) {
  if (!begun.args.training.train_step.empty()) {
    return make_library_task(begun.args, begun.tokenizer);
  }
  return make_pretraining_task(begun.args, begun.tokenizer);
}

bool is_classifier(const FinetuneFlags& flags, const Origin& origin) {
  return !flags.megatron_dataset_flag && (flags.num_labels > 0 || !origin.class_names.empty());
}

}  // namespace

int finetune(std::span<const std::string> words, const comm::Group& world) {
  const LogScope on_first(world.rank() == 0);
  Finetuning tuning{.world = world, .started = std::chrono::steady_clock::now()};
  if (!read_words(words, tuning.flags, tuning.args, tuning.problems)) return 0;
  collectively([&] {
    if (!tuning.flags.megatron_dataset_flag) drop_indexed_data(tuning.args);
    if (!tuning.problems.empty()) throw ConfigError(tuning.problems);
    tuning.origin = choose_model(tuning.flags, tuning.args);
    choose_tokenizer(tuning.flags, tuning.origin, tuning.args);
    apply_flags(tuning.flags, is_classifier(tuning.flags, tuning.origin), tuning.args);
    if (!tuning.flags.output_dir.empty() && tuning.args.checkpoint.save.empty()) {
      tuning.problems.emplace_back(
          "--save is empty, but the result in --output_dir is made of the last checkpoint; remove "
          "--save");
    }
    apply_launcher_settings(tuning.args, world.size(), tuning.problems);
    settle_architecture(tuning.origin, tuning.args, tuning.problems);
    if (!tuning.problems.empty()) throw ConfigError(tuning.problems);
  });
  tuning.replicas = replicas_of(tuning.args.parallel, world.size());
  if (tuning.flags.megatron_dataset_flag) {
    collectively([&] { expect_data_files(tuning.args); });
    apply_indexed_data(tuning.flags, tuning.replicas, tuning.args);
    const PreparedRun begun = tuning.begin();
    const std::unique_ptr<TrainTask> task = indexed_task(begun);
    train(tuning, begun, *task, {});
  } else if (tuning.args.transformer.is_encoder_decoder()) {
    finetune_pairs(tuning);
  } else if (is_classifier(tuning.flags, tuning.origin)) {
    finetune_classifier(tuning);
  } else {
    finetune_blocks(tuning);
  }
  return 0;
}

}  // namespace megatron::cli

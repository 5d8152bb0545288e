#include "megatron/cli/finetune.h"

#include <fmt/format.h>

#include <chrono>
#include <memory>
#include <utility>

#include "megatron/cli/finetune_run.h"
#include "megatron/core/error.h"
#include "megatron/core/log.h"
#include "megatron/models/bert/bert_task.h"
#include "megatron/models/gpt/gpt_task.h"
#include "megatron/models/t5/t5_task.h"
#include "megatron/parallel/replicas.h"
#include "megatron/run/common_error.h"
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
  const ModelKind kind = in_common([&] { return kind_in(words); });
  FlagTable table = finetune_flag_table(flags);
  if (!read_training_words(table, kFinetuneUsage, kind, words, args, problems)) return false;
  for (std::string& problem : megatron::cli::problems(flags, kind)) {
    problems.push_back(std::move(problem));
  }
  if (args.data.prefix_lm) {
    problems.emplace_back("--prefix-lm is for pretrain-gpt, not for finetune; remove it");
  }
  const bool is_gpt = kind == ModelKind::kGpt;
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

// The task that the training command of such a model has.
std::unique_ptr<TrainTask> indexed_task(const Pretraining& begun) {
  if (!begun.args.training.train_step.empty()) {
    return make_library_task(begun.args, begun.tokenizer);
  }
  switch (begun.args.transformer.kind) {
    case ModelKind::kGpt:
      return std::make_unique<GptTask>(begun.args, begun.tokenizer);
    case ModelKind::kBert:
      return std::make_unique<BertTask>(begun.args, begun.tokenizer);
    case ModelKind::kT5:
      return std::make_unique<T5Task>(begun.args, begun.tokenizer);
  }
  throw InternalError("indexed_task: unknown kind of model");
}

bool is_classifier(const FinetuneFlags& flags, const Origin& origin) {
  return !flags.megatron_dataset_flag && (flags.num_labels > 0 || !origin.class_names.empty());
}

}  // namespace

int finetune(std::span<const std::string> words, const comm::Group& world) {
  const Speaking on_first(world.rank() == 0);
  Finetuning tuning{.world = world, .started = std::chrono::steady_clock::now()};
  if (!read_words(words, tuning.flags, tuning.args, tuning.problems)) return 0;
  in_common([&] {
    if (!tuning.problems.empty()) throw ConfigError(tuning.problems);
    tuning.origin = choose_model(tuning.flags, tuning.args);
    choose_tokenizer(tuning.flags, tuning.origin, tuning.args);
    apply_flags(tuning.flags, is_classifier(tuning.flags, tuning.origin), tuning.args);
    apply_launcher_settings(tuning.args, world, tuning.problems);
    if (!tuning.problems.empty()) throw ConfigError(tuning.problems);
  });
  tuning.replicas = replicas_of(tuning.args.parallel, world.size());
  if (tuning.flags.megatron_dataset_flag) {
    apply_indexed_data(tuning.flags, tuning.replicas, tuning.args);
    const Pretraining begun = tuning.begin();
    const std::unique_ptr<TrainTask> task = indexed_task(begun);
    train(tuning, begun, *task, {});
  } else if (tuning.args.transformer.kind == ModelKind::kT5) {
    finetune_pairs(tuning);
  } else if (is_classifier(tuning.flags, tuning.origin)) {
    finetune_classifier(tuning);
  } else {
    finetune_blocks(tuning);
  }
  return 0;
}

}  // namespace megatron::cli

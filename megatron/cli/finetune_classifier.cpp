#include <fmt/format.h>

#include <algorithm>
#include <memory>
#include <utility>

#include "megatron/cli/finetune_run.h"
#include "megatron/comm/broadcast_object.h"
#include "megatron/comm/working.h"
#include "megatron/core/error.h"
#include "megatron/interchange/hf/class_names.h"
#include "megatron/interchange/hf/config.h"
#include "megatron/run/collectively.h"
#include "megatron/tasks/finetune_classifier_task.h"
#include "megatron/tasks/labelled_texts.h"

namespace megatron::cli {
namespace {

struct ClassifierData {
  ClassificationTask::Data task;
  std::vector<std::string> class_names;  // of the result
};

// Reads the texts and their labels. Threads of one process share them.
std::shared_ptr<const ClassifierData> read_classifier_data(const Finetuning& tuning) {
  const FinetuneFlags& flags = tuning.flags;
  const std::vector<std::string>& known = tuning.origin.class_names;
  const comm::Working working(tuning.world, "reading the texts");
  return comm::broadcast_object(tuning.world, [&] {
    const DatasetFiles files = files_of(flags);
    const std::unique_ptr<Tokenizer> tokenizer = make_tokenizer(tuning.args.tokenizer);
    LabelledColumns given = {.text = flags.text_column, .pair = flags.text_pair_column};
    if (!flags.label_column.empty()) given.label = flags.label_column;
    const LabelledColumns columns = labelled_columns(files.train.front(), given);
    const std::vector<LabelledText> texts = labelled_texts(files.train, columns);
    const std::vector<LabelledText> own_valid = labelled_texts(files.validation, columns);
    const auto num_split = static_cast<size_t>(
        files.validation.empty() ? num_validation_texts(flags, std::ssize(texts)) : 0);
    const auto train = std::span(texts).subspan(num_split);
    const auto valid =
        files.validation.empty() ? std::span(texts).first(num_split) : std::span(own_valid);
    if (train.empty()) throw ConfigError("--train_file: there is no text to train on");

    auto data = std::make_shared<ClassifierData>();
    const int64_t num_labels = flags.num_labels > 0 ? flags.num_labels : std::ssize(known);
    if (!known.empty() && std::ssize(known) != num_labels) {
      throw ConfigError(
          fmt::format("--num_labels {}: the model has a head for {} classes; give that number, or "
                      "train from a model without such a head",
                      num_labels, known.size()));
    }
    ClassificationProblem& problem = data->task.problem;
    problem = problem_of(texts, num_labels);
    std::vector<std::string> names;
    if (problem.labels == LabelKind::kClass) names = class_names_of(texts, num_labels, known);
    const auto made = [&](std::span<const LabelledText> of) {
      return std::make_shared<const ClassificationSet>(
          labelled_set(of, problem, names, tuning.args.transformer.seq_length, *tokenizer));
    };
    data->task.train = made(train);
    if (!valid.empty()) data->task.valid = made(valid);
    const bool keeps_names = names.empty() && std::ssize(known) == num_labels;
    data->class_names = keeps_names      ? known
                        : !names.empty() ? names
                                         : hf_default_class_names(num_labels);
    return std::shared_ptr<const ClassifierData>(std::move(data));
  });
}

// transformers' name of such labels, which it stores with a model that it has trained.
std::string problem_type_of(LabelKind labels) {
  switch (labels) {
    case LabelKind::kClass:
      return "single_label_classification";
    case LabelKind::kIndependent:
      return std::string(kHfMarks);
    case LabelKind::kValue:
      return "regression";
  }
  throw InternalError("problem_type_of: unknown kind of labels");
}

}  // namespace

void finetune_classifier(Finetuning& tuning) {
  const auto data = collectively([&] { return read_classifier_data(tuning); });
  // The task evaluates when an epoch ends; the run itself never does.
  const int64_t num_train = data->task.train->num_samples();
  const Lengths lengths = apply_samples(tuning.flags, num_train, 0, tuning.replicas, tuning.args);
  const PreparedRun begun = tuning.begin();
  FinetuneClassifierTask task(begun.args, begun.tokenizer, data->task);
  const auto evaluate_rest = [&](const Progress& progress) {
    if (progress.iteration % lengths.epoch_iters != 0) {
      task.evaluate_epoch(progress.iteration / lengths.epoch_iters);
    }
  };
  train(tuning, begun, task,
        {.before_training = [&] { print_summary(begun.args, num_train, lengths); },
         .after_training = evaluate_rest,
         .new_modules = {"pooler", data->task.problem.head},
         .class_names = data->class_names,
         .problem_type = problem_type_of(data->task.problem.labels)});
  const auto& evaluation = task.evaluation();
  if (!evaluation) return;
  std::vector<Result> results;
  if (evaluation->accuracy) results.push_back({"eval_accuracy", *evaluation->accuracy});
  results.push_back({"eval_loss", evaluation->loss});
  write_results(tuning, results);
}

}  // namespace megatron::cli

#pragma once

#include <chrono>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "megatron/cli/finetune_flags.h"
#include "megatron/cli/finetune_settings.h"
#include "megatron/cli/pretrain.h"
#include "megatron/comm/group.h"
#include "megatron/data/text_files.h"
#include "megatron/run/training_run.h"
#include "megatron/training/train_task.h"

// The common part of finetuning all kinds of models.
namespace megatron::cli {

// A finetuning run after its flags are parsed and its model is chosen.
struct Finetuning {
  const comm::Group& world;
  std::chrono::steady_clock::time_point started;
  FinetuneFlags flags = {};
  Origin origin = {};
  TrainingArgs args = {};  // not yet resolved
  std::vector<std::string> problems = {};
  int64_t replicas = 1;

  PreparedRun begin() const { return prepare_run(args, problems, world, started); }
};

// The files that the flags name: those of training, and those of evaluation if they have their own.
DatasetFiles files_of(const FinetuneFlags& flags);

// The number of first texts that are held out for evaluation if no evaluation file is given.
int64_t num_validation_texts(const FinetuneFlags& flags, int64_t num_texts);

// Prints Accelerate's lines about the length of a training on `num_samples` samples.
void print_summary(const TrainingArgs& args, int64_t num_samples, const Lengths& lengths);

// A command's additions to the training of its task.
struct FinetuneHooks {
  // Called before the first iteration; prints.
  std::function<void()> before_training = [] {};
  // Called after the last one, on every rank, while the model still exists.
  std::function<void(const Progress&)> after_training = [](const Progress&) {};
  // Modules that begin with these names keep their first values if the model has none of them.
  std::vector<std::string> new_modules = {};
  // Class names of the result, if it has a classification head.
  std::vector<std::string> class_names = {};
  std::string problem_type = {};
};

// Trains the task, and writes the result into --output_dir.
void train(const Finetuning& tuning, const PreparedRun& begun, TrainTask& task,
           const FinetuneHooks& hooks);

// Writes all_results.json into --output_dir, if there is one and this is the last rank.
struct Result {
  std::string_view name;
  double value;
};
void write_results(const Finetuning& tuning, const std::vector<Result>& results);

// The command for each kind of model, on texts.
void finetune_blocks(Finetuning& tuning);      // a GPT, or a BERT with masked language modeling
void finetune_classifier(Finetuning& tuning);  // a BERT with --num_labels
void finetune_pairs(Finetuning& tuning);       // a T5

}  // namespace megatron::cli

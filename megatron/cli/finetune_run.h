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

// What fine-tunings of all kinds of models have in common.
namespace megatron::cli {

// A fine-tuning whose flags are read and whose model is chosen.
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

// How many of so many texts, the first ones, are for evaluation if no file is given for that.
int64_t num_validation_texts(const FinetuneFlags& flags, int64_t num_texts);

// Prints Accelerate's lines about the length of a training on so many samples.
void print_summary(const TrainingArgs& args, int64_t num_samples, const Lengths& lengths);

// What a command does with the task of a fine-tuning, beside training it.
struct FinetuneHooks {
  // Before the first iteration: prints.
  std::function<void()> before_training = [] {};
  // After the last one, on every rank, while the model is there.
  std::function<void(const Progress&)> after_training = [](const Progress&) {};
  // Modules that begin with these names keep their first values if the model has none of them.
  std::vector<std::string> new_modules = {};
  // Of the result, if it has a head for labels.
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

// The commands of each kind of model, with texts for data.
void finetune_blocks(Finetuning& tuning);      // a GPT, or masked words of a BERT
void finetune_classifier(Finetuning& tuning);  // a BERT with --num_labels
void finetune_pairs(Finetuning& tuning);       // a T5

}  // namespace megatron::cli

#include "megatron/cli/finetune_run.h"

#include <fmt/chrono.h>
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <ctime>
#include <filesystem>
#include <system_error>
#include <utility>

#include "megatron/core/error.h"
#include "megatron/core/file.h"
#include "megatron/core/hub_cache.h"
#include "megatron/core/log.h"
#include "megatron/core/number_text.h"
#include "megatron/interchange/hf/adapters.h"
#include "megatron/interchange/hf/config.h"
#include "megatron/interchange/hf/folder.h"
#include "megatron/interchange/hf/names.h"
#include "megatron/interchange/hf/peft_folder.h"
#include "megatron/interchange/source_settings.h"
#include "megatron/run/collectively.h"
#include "megatron/run/run_checkpoint.h"
#include "megatron/tokenizers/tokenizer_files.h"

namespace megatron::cli {
namespace {

namespace fs = std::filesystem;

// A line as Accelerate's logger writes it.
void log_info(const std::string& text) {
  print_line(fmt::format("{:%m/%d/%Y %H:%M:%S} - INFO - finetune - {}",
                         fmt::localtime(std::time(nullptr)), text));
}

// Makes --output_dir, and says whether its result will be a Hugging Face model, or adapters of one:
// if no family of Hugging Face has the model, the checkpoints are the result, with a warning.
// Throws ConfigError, IoError.
bool writes_hf_model(const Finetuning& tuning, const TrainingArgs& args) {
  const fs::path output = tuning.flags.output_dir;
  std::error_code error;
  fs::create_directories(output, error);
  if (error) {
    throw IoError(fmt::format("--output_dir {}: cannot be created: {}; choose another folder",
                              output.string(), error.message()));
  }
  try {
    static_cast<void>(hf_family_of(args.transformer));
    return true;
  } catch (const Unsupported& reason) {
    for (const char* file : {"config.json", "adapter_config.json"}) {
      if (!fs::exists(output / file)) continue;
      throw ConfigError(fmt::format(
          "--output_dir {} has the {} of another model, and this one cannot replace it; choose an "
          "empty folder ({})",
          output.string(), file, reason.what()));
    }
    warn(
        fmt::format("{}\nSo {} is the result, for every command that takes a checkpoint, and {} "
                    "gets no Hugging Face model",
                    reason.what(), args.checkpoint.save, output.string()));
    return false;
  }
}

// Writes the last checkpoint as a Hugging Face model, or its adapters, into --output_dir.
void write_model(const Finetuning& tuning, const TrainingArgs& args, const Tokenizer& tokenizer,
                 const FinetuneHooks& hooks) {
  const FinetuneFlags& flags = tuning.flags;
  const fs::path output = flags.output_dir;
  const CheckpointSource last = find_source(args.checkpoint.save, 0, true);
  CheckpointContents contents = last.contents();
  for (const auto& [name, id] : tuning.origin.special_ids) contents.args[name] = id;
  if (has_adapters(contents) && !flags.merge_lora) {
    const std::string& model = flags.model_name_or_path;
    write_peft_adapters(output, contents, args.transformer,
                        is_peft_folder(model) ? base_model_of(model) : model);
    return print_line(fmt::format("the adapters are in {}", output.string()));
  }
  TransformerConfig config = described_run(last.format(), contents).transformer;
  if (has_adapters(contents)) merge_adapters(contents, config);
  config.lora_rank = 0;
  const int64_t stored = true_vocab_size(contents.args);
  const fs::path folder = args.tokenizer.tokenizer_model;
  const bool is_folder = fs::is_directory(folder);
  write_hf_folder(output, contents, config,
                  {.vocab_size = stored > 0 ? stored : tokenizer.vocab_size(),
                   .class_names = hooks.class_names,
                   .problem_type = hooks.problem_type,
                   .tokenizer = is_folder ? folder : tokenizer_folder(args.checkpoint.save)});
  print_line(fmt::format("the model is in {}", output.string()));
}

// The weights of a model, with the pooler that the files of a BERT may have beside another head.
CheckpointContents model_contents(const PreparedRun& begun) {
  const CheckpointSource& source = begun.source;
  if (source.hf() == nullptr) return source.contents(begun.args.settings);
  CheckpointContents contents =
      open_hf_checkpoint(source.directory(), *source.hf(), HfPooler::kIfThere);
  contents.args = source.args();
  return contents;
}

// Starts from the weights of a model that may lack some of the task's modules, and have others.
void load_model(const FinetuneHooks& hooks, const PreparedRun& begun, TrainingRun& run) {
  const CheckpointContents contents = model_contents(begun);
  const StoredSection& weights = contents.sections.at(kWeightsSection);
  const auto belongs_to = [](std::string_view name, const std::string& module) {
    return name.starts_with(module + ".");
  };
  for (const std::string& module : hooks.new_modules) {
    const bool is_there = std::ranges::any_of(
        weights, [&](const auto& entry) { return belongs_to(entry.first, module); });
    if (!is_there) warn(fmt::format("the model has no {}: it starts from random values", module));
  }
  load_weights(begun.args, run.state(), contents, [&](std::string_view name) {
    return !weights.contains(std::string(name)) &&
           std::ranges::any_of(hooks.new_modules,
                               [&](const std::string& module) { return belongs_to(name, module); });
  });
}

}  // namespace

// The files that the flags name: those of training, and those of evaluation if they have their own.
DatasetFiles files_of(const FinetuneFlags& flags) {
  DatasetFiles files;
  if (flags.train_file.empty() && !flags.dataset_name.empty()) {
    fs::path folder = dataset_path(flags.dataset_name, "--dataset_name");
    if (!flags.dataset_config_name.empty()) {
      folder /= flags.dataset_config_name;
      if (!fs::exists(folder)) {
        throw ConfigError(fmt::format("--dataset_config_name {}: there is no folder {}",
                                      flags.dataset_config_name, folder.string()));
      }
    } else if (fs::exists(folder / "data")) {
      folder /= "data";
    }
    files = dataset_files(folder);
  } else {
    files.train = text_files(flags.train_file);
  }
  if (!flags.validation_file.empty()) files.validation = text_files(flags.validation_file);
  if (files.train.empty()) throw ConfigError("--train_file is required: the texts to train on");
  return files;
}

// Compat: the percentage is rounded as in transformers' data sets.
int64_t num_validation_texts(const FinetuneFlags& flags, int64_t num_texts) {
  return std::llrint(static_cast<double>(flags.validation_split_percentage) *
                     static_cast<double>(num_texts) / 100.0);
}

void print_summary(const TrainingArgs& args, int64_t num_samples, const Lengths& lengths) {
  const TrainingConfig& training = args.training;
  log_info("***** Running training *****");
  log_info(fmt::format("  Num examples = {}", num_samples));
  log_info(fmt::format("  Num Epochs = {}", lengths.epochs));
  log_info(fmt::format("  Instantaneous batch size per device = {}", training.micro_batch_size));
  log_info(fmt::format("  Total train batch size (w. parallel, distributed & accumulation) = {}",
                       training.global_batch_size));
  log_info(fmt::format("  Gradient Accumulation steps = {}",
                       training.global_batch_size / training.micro_batch_size /
                           std::max<int64_t>(args.parallel.data_parallel_size, 1)));
  log_info(fmt::format("  Total optimization steps = {}", lengths.train_iters));
}

void train(const Finetuning& tuning, const PreparedRun& begun, TrainTask& task,
           const FinetuneHooks& hooks) {
  const FinetuneFlags& flags = tuning.flags;
  const TrainingArgs& args = begun.args;
  const bool has_output = !flags.output_dir.empty() && !args.training.skip_train;
  const bool writes_model =
      has_output && collectively([&] { return writes_hf_model(tuning, args); });
  if (flags.merge_lora && args.transformer.lora_rank == 0) {
    warn("--merge_lora has no effect: the model has no adapters");
  }
  check_memory(args, tuning.world);
  TrainingRun run(begun, task, tuning.world);
  const bool resumes = !flags.resume_from_checkpoint.empty();
  if (args.transformer.is_encoder_only() && begun.source.exists() && !resumes) {
    collectively([&] { load_model(hooks, begun, run); });
  } else {
    run.load(begun.source);
  }
  hooks.before_training();
  run.train();
  hooks.after_training(run.state().progress);
  if (!has_output) return;
  if (!writes_model) return print_line(fmt::format("the model is in {}", args.checkpoint.save));
  on_first_rank(tuning.world, [&] { write_model(tuning, args, *begun.tokenizer, hooks); });
}

void write_results(const Finetuning& tuning, const std::vector<Result>& results) {
  const bool is_last = tuning.world.rank() == tuning.world.size() - 1;
  if (tuning.flags.output_dir.empty() || !is_last || results.empty()) return;
  std::string text;
  for (const Result& result : results) {
    text += fmt::format("{}\"{}\": {}", text.empty() ? "" : ", ", result.name,
                        std::isinf(result.value) ? "Infinity" : python_repr(result.value));
  }
  write_text_atomically(fs::path(tuning.flags.output_dir) / "all_results.json", "{" + text + "}\n");
}

}  // namespace megatron::cli

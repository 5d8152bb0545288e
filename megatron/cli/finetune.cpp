#include "megatron/cli/finetune.h"

#include <fmt/chrono.h>
#include <fmt/format.h>

#include <chrono>
#include <cmath>
#include <cstdlib>
#include <ctime>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <utility>

#include "megatron/cli/finetune_flags.h"
#include "megatron/cli/finetune_settings.h"
#include "megatron/cli/pretrain.h"
#include "megatron/comm/made_once.h"
#include "megatron/comm/working.h"
#include "megatron/core/error.h"
#include "megatron/core/file.h"
#include "megatron/core/log.h"
#include "megatron/data/python_json.h"
#include "megatron/data/text_blocks.h"
#include "megatron/data/text_files.h"
#include "megatron/interchange/hf/adapters.h"
#include "megatron/interchange/hf/folder.h"
#include "megatron/interchange/hf/hub_cache.h"
#include "megatron/interchange/hf/peft_folder.h"
#include "megatron/interchange/source_settings.h"
#include "megatron/models/gpt/finetune_task.h"
#include "megatron/parallel/replicas.h"
#include "megatron/run/common_error.h"
#include "megatron/run/train_step_library.h"
#include "megatron/run/training_run.h"
#include "megatron/tokenizers/tokenizer_files.h"

namespace megatron::cli {
namespace {

namespace fs = std::filesystem;

constexpr const char* kUsage =
    "megatron finetune --model_name_or_path DIR --train_file FILE [flags]";

// A line as Accelerate's logger writes it.
void log_info(const std::string& text) {
  print_line(fmt::format("{:%m/%d/%Y %H:%M:%S} - INFO - finetune - {}",
                         fmt::localtime(std::time(nullptr)), text));
}

// Reads the words of the command; false after --help.
bool read_words(std::span<const std::string> words, FinetuneFlags& flags, TrainingArgs& args,
                std::vector<std::string>& problems) {
  FlagTable table = finetune_flag_table(flags);
  if (!read_training_words(table, kUsage, ModelKind::kGpt, words, args, problems)) return false;
  for (std::string& problem : megatron::cli::problems(flags)) {
    problems.push_back(std::move(problem));
  }
  if (args.data.prefix_lm) {
    problems.emplace_back("--prefix-lm is for pretrain-gpt, not for finetune; remove it");
  }
  return true;
}

// The files that the flags name: those of training, and those of evaluation if they have their own.
DatasetFiles files_of(const FinetuneFlags& flags) {
  DatasetFiles files;
  if (flags.train_file.empty() && !flags.dataset_name.empty()) {
    fs::path folder = dataset_path(flags.dataset_name, "--dataset_name", std::getenv);
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

// Reads the texts in blocks. Threads of one process share them.
std::shared_ptr<const FinetuneTask::Data> read_blocks(const FinetuneFlags& flags,
                                                      const TrainingArgs& args,
                                                      const comm::Group& world) {
  const comm::Working working(world, "reading the texts");
  return comm::made_once(world, [&] {
    const std::unique_ptr<Tokenizer> tokenizer = make_tokenizer(args.tokenizer);
    const TextFileOptions options{.column = flags.text_column,
                                  .keeps_linebreaks = flags.keeps_linebreaks};
    const DatasetFiles files = files_of(flags);
    const TokenizedTexts texts = tokenized_texts(files.train, options, *tokenizer);
    const int64_t block_size = args.transformer.seq_length;
    const auto blocks_of = [&](const TokenizedTexts& of, int64_t begin, int64_t end) {
      return std::make_shared<const TextBlocks>(text_blocks(of, begin, end, block_size));
    };
    auto data = std::make_shared<FinetuneTask::Data>();
    int64_t begin = 0;
    if (files.validation.empty()) {
      // Compat: the percentage is rounded as in transformers' data sets.
      begin = std::llrint(static_cast<double>(flags.validation_split_percentage) *
                          static_cast<double>(texts.num_texts()) / 100.0);
      data->valid = blocks_of(texts, 0, begin);
    } else {
      const TokenizedTexts valid = tokenized_texts(files.validation, options, *tokenizer);
      data->valid = blocks_of(valid, 0, valid.num_texts());
    }
    data->train = blocks_of(texts, begin, texts.num_texts());
    if (data->train->num_blocks() == 0) {
      throw ConfigError(
          fmt::format("the training texts fill no block of {} tokens: there are {} texts with {} "
                      "tokens; lower --block_size or add texts",
                      block_size, texts.num_texts(), texts.ids.size()));
    }
    if (data->valid->num_blocks() == 0) {
      warn(fmt::format("the validation texts fill no block of {} tokens, so nothing is evaluated",
                       block_size));
      data->valid = nullptr;
    }
    return std::shared_ptr<const FinetuneTask::Data>(std::move(data));
  });
}

void print_summary(const TrainingArgs& args, const FinetuneTask::Data& data,
                   const Lengths& lengths) {
  const TrainingConfig& training = args.training;
  log_info("***** Running training *****");
  log_info(fmt::format("  Num examples = {}", data.train->num_blocks()));
  log_info(fmt::format("  Num Epochs = {}", lengths.epochs));
  log_info(fmt::format("  Instantaneous batch size per device = {}", training.micro_batch_size));
  log_info(fmt::format("  Total train batch size (w. parallel, distributed & accumulation) = {}",
                       training.global_batch_size));
  log_info(fmt::format("  Gradient Accumulation steps = {}",
                       training.global_batch_size / training.micro_batch_size /
                           std::max<int64_t>(args.parallel.data_parallel_size, 1)));
  log_info(fmt::format("  Total optimization steps = {}", lengths.train_iters));
}

// Writes the last checkpoint as a Hugging Face model, or its adapters, into --output_dir.
void write_model(const FinetuneFlags& flags, const TrainingArgs& args, const Tokenizer& tokenizer) {
  const fs::path output = flags.output_dir;
  const CheckpointSource last = find_source(args.checkpoint.save, 0, true);
  CheckpointContents contents = last.contents();
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
                   .tokenizer = is_folder ? folder : tokenizer_folder(args.checkpoint.save)});
  print_line(fmt::format("the model is in {}", output.string()));
}

void write_results(const fs::path& output, double perplexity) {
  const std::string number = std::isinf(perplexity) ? "Infinity" : python_repr(perplexity);
  write_text_atomically(output / "all_results.json",
                        fmt::format("{{\"perplexity\": {}}}\n", number));
}

// Finishes `megatron finetune` with a task: trains, and writes the result into --output_dir.
void train(const FinetuneFlags& flags, const Pretraining& begun, TrainTask& task,
           const comm::Group& world, const std::function<void()>& before_training) {
  check_memory(begun.args, world);
  TrainingRun run(begun.args, task, world, begun.started, begun.save_directory);
  run.load(begun.source);
  before_training();
  run.train();
  if (flags.output_dir.empty()) return;
  on_first_rank(world, [&] { write_model(flags, begun.args, *begun.tokenizer); });
}

// The task of --train-step.
std::unique_ptr<FinetuneTask> library_task(const Pretraining& begun,
                                           const FinetuneTask::Data& data) {
  std::unique_ptr<TrainTask> task = make_library_task(begun.args, begun.tokenizer, &data);
  auto* const finetuning = dynamic_cast<FinetuneTask*>(task.get());
  if (finetuning == nullptr) {
    throw ConfigError(
        fmt::format("--train-step {}: its task must derive from FinetuneTask in this command: make "
                    "such a task if TrainStepParts has finetune_data",
                    begun.args.training.train_step));
  }
  static_cast<void>(task.release());
  return std::unique_ptr<FinetuneTask>(finetuning);
}

}  // namespace

int finetune(std::span<const std::string> words, const comm::Group& world) {
  const Speaking on_first(world.rank() == 0);
  const auto started = std::chrono::steady_clock::now();
  FinetuneFlags flags;
  TrainingArgs args;
  std::vector<std::string> problems;
  if (!read_words(words, flags, args, problems)) return 0;
  in_common([&] {
    if (!problems.empty()) throw ConfigError(problems);
    const Origin origin = choose_model(flags, args);
    choose_tokenizer(flags, origin, args);
    apply_flags(flags, args);
    apply_launcher_settings(args, world, problems);
    if (!problems.empty()) throw ConfigError(problems);
  });
  const int64_t replicas = replicas_of(args.parallel, world.size());
  const bool has_library = !args.training.train_step.empty();
  if (flags.megatron_dataset_flag) {
    apply_indexed_data(flags, replicas, args);
    const Pretraining begun = begin_training(std::move(args), std::move(problems), world, started);
    const std::unique_ptr<TrainTask> task =
        has_library ? make_library_task(begun.args, begun.tokenizer)
                    : std::make_unique<GptTask>(begun.args, begun.tokenizer);
    train(flags, begun, *task, world, [] {});
    return 0;
  }
  const auto data = in_common([&] { return read_blocks(flags, args, world); });
  const Lengths lengths =
      apply_blocks(flags, data->train->num_blocks(),
                   data->valid == nullptr ? 0 : data->valid->num_blocks(), replicas, args);
  const Pretraining begun = begin_training(std::move(args), std::move(problems), world, started);
  const std::unique_ptr<FinetuneTask> task =
      has_library ? library_task(begun, *data)
                  : std::make_unique<FinetuneTask>(begun.args, begun.tokenizer, *data);
  train(flags, begun, *task, world, [&] { print_summary(begun.args, *data, lengths); });
  const bool is_last = world.rank() == world.size() - 1;
  if (!flags.output_dir.empty() && is_last && task->perplexity()) {
    write_results(flags.output_dir, *task->perplexity());
  }
  return 0;
}

}  // namespace megatron::cli

#include "megatron/cli/finetune.h"

#include <fmt/chrono.h>
#include <fmt/format.h>

#include <chrono>
#include <cmath>
#include <ctime>
#include <filesystem>
#include <memory>
#include <optional>
#include <utility>

#include "megatron/cli/finetune_flags.h"
#include "megatron/cli/pretrain.h"
#include "megatron/comm/made_once.h"
#include "megatron/comm/working.h"
#include "megatron/core/error.h"
#include "megatron/core/file.h"
#include "megatron/core/log.h"
#include "megatron/core/number_text.h"
#include "megatron/data/python_json.h"
#include "megatron/data/text_blocks.h"
#include "megatron/frontends/override_settings.h"
#include "megatron/interchange/hf/folder.h"
#include "megatron/interchange/source_settings.h"
#include "megatron/models/gpt/finetune_task.h"
#include "megatron/run/common_error.h"
#include "megatron/run/training_run.h"
#include "megatron/tokenizers/tokenizer_files.h"

namespace megatron::cli {
namespace {

namespace fs = std::filesystem;
using frontends::OverrideSettings;

constexpr const char* kUsage =
    "megatron finetune --model_name_or_path DIR --train_file FILE [flags]";
constexpr const char* kCheckpoints = "checkpoints";  // in --output_dir

// A line as Accelerate's logger writes it.
void log_info(const std::string& text) {
  print_line(fmt::format("{:%m/%d/%Y %H:%M:%S} - INFO - finetune - {}",
                         fmt::localtime(std::time(nullptr)), text));
}

// Sets a flag's field unless the command line has it.
void set_default(OverrideSettings& settings, const TrainingArgs& args, const char* dest,
                 const ArgValue& value, const char* source) {
  if (!args.given.contains(dest)) settings.set(dest, value, source);
}

// Reads the words of the command; false after --help.
bool read_words(std::span<const std::string> words, FinetuneFlags& flags, TrainingArgs& args,
                std::vector<std::string>& problems) {
  FlagTable table = finetune_flag_table(flags);
  std::vector<std::string> rest(words.begin(), words.end());
  const ParsedFlags own = table.parse(table.take_own(rest));
  args = parsed_flags(rest, ModelKind::kGpt, problems);
  if (args.wants_help) {
    print_line(fmt::format("usage: {}\n{}\nAll flags of `megatron pretrain-gpt --help`, too.",
                           kUsage, table.help()));
    return false;
  }
  problems.insert(problems.end(), own.problems.begin(), own.problems.end());
  for (std::string& problem : megatron::cli::problems(flags)) {
    problems.push_back(std::move(problem));
  }
  for (const std::string& flag : own.ignored) {
    args.warnings.push_back(fmt::format("{} has no effect in this command", flag));
  }
  return true;
}

// Where the model comes from.
struct Origin {
  ArgMap settings;  // of the model, or of the run that saved it
  fs::path folder;  // which may have the tokenizer
  bool is_hf = true;
};

// --resume_from_checkpoint names --output_dir, or a place in it that no directory has: step_<n> and
// epoch_<n>.
struct ResumePoint {
  fs::path checkpoints;
  std::string unit;  // "step", "epoch"; empty: the latest
  int64_t number = 0;
};

ResumePoint resume_point(const fs::path& named) {
  ResumePoint point;
  fs::path folder = named.has_filename() ? named : named.parent_path();
  const std::string name = folder.filename();
  const size_t line = name.find('_');
  if (!fs::exists(folder) && line != std::string::npos) {
    const std::optional<int64_t> number = integer_of(name.substr(line + 1));
    const std::string unit = name.substr(0, line);
    if (number && (unit == "step" || unit == "epoch")) {
      point.unit = unit;
      point.number = *number;
      folder = folder.parent_path();
    }
  }
  const fs::path inner = folder / kCheckpoints;
  point.checkpoints = fs::is_directory(inner) ? inner : folder;
  return point;
}

Origin origin_of_config(const FinetuneFlags& flags, TrainingArgs& args) {
  const HfModel model = read_hf_config(flags.config_name);
  ArgMap settings = settings_of(model);
  settings.erase("tokenizer_type");
  settings.erase("padded_vocab_size");
  settings.erase("seq_length");
  use_checkpoint_args(args, settings);
  const fs::path path = flags.config_name;
  return {std::move(settings), fs::is_directory(path) ? path : path.parent_path()};
}

// Chooses the weights, the architecture and the dropout.
Origin choose_model(const FinetuneFlags& flags, TrainingArgs& args) {
  CheckpointConfig& checkpoint = args.checkpoint;
  Origin origin;
  const bool resumes = !flags.resume_from_checkpoint.empty();
  if (!resumes && !flags.config_name.empty()) {
    origin = origin_of_config(flags, args);
  } else if (resumes || !flags.model_name_or_path.empty()) {
    checkpoint.load = resumes ? resume_point(flags.resume_from_checkpoint).checkpoints.string()
                              : flags.model_name_or_path;
    checkpoint.use_checkpoint_args = true;
    const CheckpointSource source = find_source(checkpoint.load, checkpoint.ckpt_step, true);
    origin = {source.args(), source.directory(), source.hf() != nullptr};
    checkpoint.finetune = !resumes && !origin.is_hf;
  }
  OverrideSettings settings(args);
  for (const char* dest : {"hidden_dropout", "attention_dropout", "max_position_embeddings"}) {
    const auto found = origin.settings.find(dest);
    if (found != origin.settings.end()) set_default(settings, args, dest, found->second, dest);
  }
  return origin;
}

bool names_tokenizer(const TrainingArgs& args) {
  return args.given.contains("vocab_file") || args.given.contains("tokenizer_model") ||
         args.given.contains("vocab_size");
}

// The tokenizer of --tokenizer_name, or else of the model, unless Megatron's flags name one.
void choose_tokenizer(const FinetuneFlags& flags, const Origin& origin, TrainingArgs& args) {
  if (names_tokenizer(args)) return;
  const fs::path folder =
      flags.tokenizer_name.empty() ? origin.folder : fs::path(flags.tokenizer_name);
  const bool is_checkpoint = flags.tokenizer_name.empty() && !origin.is_hf;
  const std::optional<TokenizerConfig> found =
      is_checkpoint ? tokenizer_of_checkpoint(folder) : tokenizer_of_model(folder);
  if (!found) {
    throw ConfigError(fmt::format(
        "{}: no tokenizer is there (tokenizer.json, or vocab.json and merges.txt); give its folder "
        "with --tokenizer_name",
        folder.string()));
  }
  args.tokenizer = *found;
}

int64_t positions_of(const TrainingArgs& args) { return args.transformer.max_position_embeddings; }

// Tokens of a sample.
int64_t chosen_block_size(const FinetuneFlags& flags, const TrainingArgs& args) {
  constexpr int64_t kMost = 1024;
  const int64_t positions = positions_of(args);
  const int64_t wanted = flags.block_size > 0 ? flags.block_size : kMost;
  if (positions > 0 && wanted > positions) {
    if (flags.block_size > 0) {
      warn(fmt::format("--block_size {} is lowered to {}, the positions of the model", wanted,
                       positions));
    }
    return positions;
  }
  return wanted;
}

LrDecayStyle decay_style_of(const std::string& type, int64_t warmup_steps) {
  if (type == "linear") return LrDecayStyle::kLinear;
  if (type == "cosine") return LrDecayStyle::kCosine;
  if (type == "constant" || type == "constant_with_warmup") return LrDecayStyle::kConstant;
  if (type == "inverse_sqrt" && warmup_steps > 0) return LrDecayStyle::kInverseSquareRoot;
  throw ConfigError(
      fmt::format("--lr_scheduler_type {} is not available; use linear, cosine, constant, "
                  "constant_with_warmup, or inverse_sqrt with --num_warmup_steps",
                  type));
}

// The settings that do not depend on the data. Flags of pretrain-gpt win.
void apply_flags(const FinetuneFlags& flags, TrainingArgs& args) {
  OverrideSettings settings(args);
  const auto set = [&](const char* dest, const ArgValue& value, const char* source) {
    set_default(settings, args, dest, value, source);
  };
  set("seq_length", chosen_block_size(flags, args), "--block_size");
  if (positions_of(args) == 0) {
    set("max_position_embeddings", args.transformer.seq_length, "--block_size");
  }
  set("micro_batch_size", flags.per_device_train_batch_size, "--per_device_train_batch_size");
  set("lr", flags.learning_rate, "--learning_rate");
  set("weight_decay", 0.0, "finetune");
  set("log_interval", int64_t{10}, "finetune");
  const LrDecayStyle style = decay_style_of(flags.lr_scheduler_type, flags.num_warmup_steps);
  set("lr_decay_style", std::string(name_of(style)), "--lr_scheduler_type");
  const bool warms_up = flags.lr_scheduler_type != "constant";
  set("lr_warmup_iters", warms_up ? flags.num_warmup_steps : 0, "--num_warmup_steps");
  if (!flags.output_dir.empty()) {
    set("save", (fs::path(flags.output_dir) / kCheckpoints).string(), "--output_dir");
  }
}

int64_t replicas_of(const ParallelConfig& parallel, int64_t world_size) {
  const int64_t ranks = parallel.tensor_model_parallel_size *
                        parallel.pipeline_model_parallel_size * parallel.context_parallel_size;
  return std::max<int64_t>(world_size / std::max<int64_t>(ranks, 1), 1);
}

fs::path texts_of_dataset(const FinetuneFlags& flags) {
  const fs::path folder = fs::path(flags.dataset_name) / flags.dataset_config_name;
  if (fs::exists(folder)) return folder;
  throw ConfigError(fmt::format(
      "--dataset_name {}: is no folder, and data sets are not downloaded; write its texts as "
      ".jsonl and give them with --train_file",
      flags.dataset_name));
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
    std::vector<std::string> train = flags.train_file;
    if (train.empty() && !flags.dataset_name.empty()) train = {texts_of_dataset(flags).string()};
    if (train.empty()) {
      throw ConfigError("--train_file is required: the texts to train on");
    }
    const TokenizedTexts texts = tokenized_texts(text_files(train), options, *tokenizer);
    const int64_t block_size = args.transformer.seq_length;
    const auto blocks_of = [&](const TokenizedTexts& of, int64_t begin, int64_t end) {
      return std::make_shared<const TextBlocks>(text_blocks(of, begin, end, block_size));
    };
    auto data = std::make_shared<FinetuneTask::Data>();
    int64_t begin = 0;
    if (flags.validation_file.empty()) {
      // Compat: the percentage is rounded as in transformers' data sets.
      begin = std::llrint(static_cast<double>(flags.validation_split_percentage) *
                          static_cast<double>(texts.num_texts()) / 100.0);
      data->valid = blocks_of(texts, 0, begin);
    } else {
      const TokenizedTexts valid =
          tokenized_texts(text_files(flags.validation_file), options, *tokenizer);
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

// The length of the training, in iterations.
struct Lengths {
  int64_t epoch_iters = 0;
  int64_t train_iters = 0;
  int64_t epochs = 0;
};

Lengths lengths_of(const FinetuneFlags& flags, int64_t num_blocks, int64_t global_batch_size) {
  Lengths lengths;
  lengths.epoch_iters = epoch_iterations(num_blocks, global_batch_size);
  lengths.train_iters = flags.max_train_steps > 0 ? flags.max_train_steps
                                                  : flags.num_train_epochs * lengths.epoch_iters;
  lengths.epochs = (lengths.train_iters + lengths.epoch_iters - 1) / lengths.epoch_iters;
  return lengths;
}

// The settings that depend on the data.
Lengths apply_data(const FinetuneFlags& flags, const FinetuneTask::Data& data, int64_t replicas,
                   TrainingArgs& args) {
  TrainingConfig& training = args.training;
  OverrideSettings settings(args);
  const auto set = [&](const char* dest, int64_t value, const char* source) {
    set_default(settings, args, dest, value, source);
  };
  set("global_batch_size", training.micro_batch_size * flags.gradient_accumulation_steps * replicas,
      "--gradient_accumulation_steps");
  const int64_t batch = std::max<int64_t>(training.global_batch_size, 1);
  const Lengths lengths = lengths_of(flags, data.train->num_blocks(), batch);
  const int64_t valid = data.valid == nullptr ? 0 : data.valid->num_blocks();
  settings.set("train_iters", lengths.train_iters, "--max_train_steps");
  settings.set("eval_interval", lengths.epoch_iters, "the length of an epoch");
  settings.set("eval_iters", epoch_iterations(valid, batch), "the validation texts");
  training.repeats_last_evaluation = false;
  const std::string& steps = flags.checkpointing_steps;
  if (!args.checkpoint.save.empty()) {
    const int64_t at_the_end = lengths.train_iters + 1;
    set("save_interval",
        steps == "epoch" ? lengths.epoch_iters : integer_of(steps).value_or(at_the_end),
        "--checkpointing_steps");
  }
  if (!flags.resume_from_checkpoint.empty()) {
    const ResumePoint point = resume_point(flags.resume_from_checkpoint);
    if (point.unit == "step") args.checkpoint.ckpt_step = point.number;
    if (point.unit == "epoch") {
      args.checkpoint.ckpt_step = (point.number + 1) * lengths.epoch_iters;
    }
  }
  return lengths;
}

void apply_trackers(const FinetuneFlags& flags, TrainingArgs& args) {
  if (!flags.with_tracking) return;
  if (flags.output_dir.empty()) {
    throw ConfigError("--with_tracking needs --output_dir for the records");
  }
  const fs::path folder = flags.output_dir;
  const bool all = flags.report_to == "all";
  if (!all && flags.report_to != "tensorboard" && flags.report_to != "jsonl") {
    throw ConfigError(fmt::format("--report_to {} is not available; use tensorboard, jsonl or all",
                                  flags.report_to));
  }
  OverrideSettings settings(args);
  if (all || flags.report_to == "tensorboard") {
    set_default(settings, args, "tensorboard_dir", (folder / "tensorboard").string(),
                "--report_to");
  }
  if (all || flags.report_to == "jsonl") {
    set_default(settings, args, "metrics_jsonl", (folder / "metrics.jsonl").string(),
                "--report_to");
  }
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

// Writes the last checkpoint as a Hugging Face model into --output_dir.
void write_model(const fs::path& output, const TrainingArgs& args, const Tokenizer& tokenizer) {
  const CheckpointSource last = find_source(args.checkpoint.save, 0, true);
  CheckpointContents contents = last.contents();
  const int64_t stored = true_vocab_size(contents.args);
  const fs::path folder = args.tokenizer.tokenizer_model;
  const bool is_folder = fs::is_directory(folder);
  write_hf_folder(output, contents, described_run(last.format(), contents).transformer,
                  {.vocab_size = stored > 0 ? stored : tokenizer.vocab_size(),
                   .tokenizer = is_folder ? folder : tokenizer_folder(args.checkpoint.save)});
  print_line(fmt::format("the model is in {}", output.string()));
}

void write_results(const fs::path& output, double perplexity) {
  const std::string number = std::isinf(perplexity) ? "Infinity" : python_repr(perplexity);
  write_text_atomically(output / "all_results.json",
                        fmt::format("{{\"perplexity\": {}}}\n", number));
}

}  // namespace

int finetune(std::span<const std::string> words, const comm::Group& world) {
  const Speaking on_first(world.rank() == 0);
  const auto started = std::chrono::steady_clock::now();
  FinetuneFlags flags;
  TrainingArgs args;
  std::vector<std::string> problems;
  if (!read_words(words, flags, args, problems)) return 0;
  const auto data = in_common([&] {
    if (!problems.empty()) throw ConfigError(problems);
    const Origin origin = choose_model(flags, args);
    choose_tokenizer(flags, origin, args);
    apply_flags(flags, args);
    apply_trackers(flags, args);
    apply_launcher_settings(args, world, problems);
    if (!problems.empty()) throw ConfigError(problems);
    return read_blocks(flags, args, world);
  });
  const Lengths lengths = apply_data(flags, *data, replicas_of(args.parallel, world.size()), args);
  const Pretraining begun = begin_training(std::move(args), std::move(problems), world, started);
  check_memory(begun.args, world);
  FinetuneTask task(begun.args, begun.tokenizer, *data);
  TrainingRun run(begun.args, task, world, begun.started, begun.save_directory);
  run.load(begun.source);
  print_summary(begun.args, *data, lengths);
  run.train();
  if (flags.output_dir.empty()) return 0;
  on_first_rank(world, [&] { write_model(flags.output_dir, begun.args, *begun.tokenizer); });
  const bool is_last = world.rank() == world.size() - 1;
  if (is_last && task.perplexity()) write_results(flags.output_dir, *task.perplexity());
  return 0;
}

}  // namespace megatron::cli

#include "megatron/cli/classify.h"
#include "megatron/cli/launcher_settings.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <memory>
#include <utility>
#include <vector>

#include "megatron/cli/pretrain.h"
#include "megatron/comm/broadcast_object.h"
#include "megatron/comm/working.h"
#include "megatron/core/error.h"
#include "megatron/core/log.h"
#include "megatron/interchange/model_kind.h"
#include "megatron/parallel/replicas.h"
#include "megatron/run/collectively.h"
#include "megatron/run/run_checkpoint.h"
#include "megatron/run/training_run.h"
#include "megatron/settings/flag_table.h"
#include "megatron/settings/training_args.h"
#include "megatron/tasks/classification_task.h"

namespace megatron::cli {
namespace {

constexpr const char* kClassifyUsage =
    "megatron evaluate --task RACE|MNLI|QQP --epochs N --train-data PATH --valid-data PATH ... "
    "[flags]";
constexpr int64_t kNotGiven = -1;

struct ClassifyFlags {
  std::string task;
  int64_t epochs = kNotGiven;
  std::string pretrained_checkpoint;
  std::vector<std::string> train_data;
  std::vector<std::string> valid_data;
  bool keep_last = false;

  ClassificationTaskKind kind() const { return *classification_task_of(task); }
};

FlagTable flags_of(ClassifyFlags& flags) {
  FlagTable table;
  table.group("task");
  table.add(
      "--task", flags.task,
      "MNLI or QQP (files of GLUE), RACE (folders); WIKITEXT103 and LAMBADA have other flags: "
      "see `megatron evaluate --help`.");
  table.add_optional("--epochs", flags.epochs,
                     "Passes over the training data; 0: only measure the accuracy.");
  table.add_optional("--pretrained-checkpoint", flags.pretrained_checkpoint,
                     "A BERT with its binary head, to start from if --load has no checkpoint yet.");
  table.add("--train-data", flags.train_data, "Files, or folders of RACE, to train on.");
  table.add("--valid-data", flags.valid_data,
            "Files, or folders of RACE; the accuracy is measured on each.");
  table.add_switch("--keep-last", flags.keep_last,
                   "Fill the last batch of an epoch with its first samples, in place of leaving it "
                   "out.");
  return table;
}

std::vector<std::string> problems_of(const ClassifyFlags& flags, const TrainingArgs& args) {
  std::vector<std::string> found;
  const auto require = [&](bool holds, const char* problem) {
    if (!holds) found.emplace_back(problem);
  };
  require(flags.epochs >= 0, "--epochs is required: 0 to measure a model, 3 to train one");
  require(flags.epochs <= 0 || !flags.train_data.empty(),
          "--train-data is required: the file of GLUE or the folder of RACE to train on");
  require(flags.epochs != 0 || !flags.valid_data.empty(),
          "--valid-data is required with --epochs 0: the data to measure the accuracy on");
  require(
      flags.epochs != 0 || !args.checkpoint.load.empty() || !flags.pretrained_checkpoint.empty(),
      "--epochs 0 needs --load, a model that was trained on the task");
  require(args.transformer.seq_length > 0, "--seq-length is required; for example 512");
  require(args.training.micro_batch_size > 0,
          "--micro-batch-size is required: samples of a rank; for example 8");
  require(!args.given.contains("train_iters") && !args.given.contains("train_samples"),
          "--train-iters and --train-samples do not go with --epochs, which gives the length; "
          "remove them");
  return found;
}

// False after --help.
bool read_words(std::span<const std::string> words, ClassifyFlags& flags, TrainingArgs& args,
                std::vector<std::string>& problems) {
  FlagTable table = flags_of(flags);
  if (!read_training_words(table, kClassifyUsage, ModelKind::kBert, words, args, problems))
    return false;
  for (std::string& problem : problems_of(flags, args)) problems.push_back(std::move(problem));
  std::string& type = args.tokenizer.tokenizer_type;
  if (type.empty()) type = "BertWordPieceLowerCase";
  return true;
}

// Reads the data. Threads of one process share them.
std::shared_ptr<const ClassificationTask::Data> read_data(const ClassifyFlags& flags,
                                                          const TrainingArgs& args,
                                                          const comm::Group& world) {
  const comm::Working working(world, "reading the data of the task");
  return comm::broadcast_object(world, [&] {
    const std::unique_ptr<Tokenizer> tokenizer = make_tokenizer(args.tokenizer);
    const auto read = [&](const std::vector<std::string>& paths) {
      return std::make_shared<const ClassificationSet>(
          read_classification_set(flags.kind(), paths, args.transformer.seq_length, *tokenizer));
    };
    auto data = std::make_shared<ClassificationTask::Data>();
    data->problem = problem_of(flags.kind());
    if (flags.epochs > 0) {
      data->train = read(flags.train_data);
      print_line(
          fmt::format(" > {} samples of {} to train on", data->train->num_samples(), flags.task));
    }
    for (const std::string& path : flags.valid_data) {
      data->measured.push_back(read({path}));
      print_line(fmt::format(" > {} samples of {} to measure", data->measured.back()->num_samples(),
                             data->measured.back()->name));
    }
    if (flags.epochs > 0 && !flags.valid_data.empty()) data->valid = joined(data->measured);
    return std::shared_ptr<const ClassificationTask::Data>(std::move(data));
  });
}

// The settings that depend on the data. `replicas` ranks have the whole model each.
void apply_data(const ClassifyFlags& flags, const ClassificationTask::Data& data, int64_t replicas,
                TrainingArgs& args) {
  TrainingConfig& training = args.training;
  if (data.valid == nullptr || data.valid->num_samples() == 0) training.eval_iters = 0;
  if (flags.epochs == 0) {
    training.train_iters = 1;  // of no effect: nothing is trained
    training.skip_train = true;
    args.checkpoint.finetune = true;  // the weights alone are read
    return;
  }
  const int64_t batch = training.micro_batch_size * replicas;
  if (args.given.contains("global_batch_size") && training.global_batch_size != batch) {
    throw ConfigError(fmt::format(
        "--global-batch-size {} must be --micro-batch-size {} x data parallel size {} for this "
        "task; remove it",
        training.global_batch_size, training.micro_batch_size, replicas));
  }
  const int64_t length = epoch_iterations(*data.train, batch, flags.keep_last);
  if (length == 0) {
    throw ConfigError(fmt::format(
        "--train-data has {} samples, which fill no batch of {}; lower --micro-batch-size, or give "
        "--keep-last",
        data.train->num_samples(), batch));
  }
  training.train_iters = flags.epochs * length;
  if (!args.given.contains("save_interval")) {  // the ends of the epochs suffice
    args.checkpoint.save_interval = training.train_iters + 1;
  }
}

// Starts from --pretrained-checkpoint. The new head keeps its first values, unless the checkpoint
// has one.
void load_pretrained(const ClassifyFlags& flags, const RunConfig& config, TrainingRun& run) {
  const CheckpointSource source =
      find_source(flags.pretrained_checkpoint, 0, true, LoadFormat::kAuto, Parts::kWeights);
  print_line(fmt::format(" loading the pretrained model of {}", source.directory().string()));
  const std::string head = problem_of(flags.kind()).head + ".";
  expect_kind(source, ModelKind::kBert);
  const CheckpointContents& contents = source.contents(config.settings);
  const StoredSection& weights = contents.sections.at(kWeightsSection);
  const bool has_head = weights.contains(head + "weight");
  if (!has_head) {
    warn(fmt::format("the checkpoint has no {}weight: the head starts from random values", head));
  }
  load_weights(config, run.state(), contents,
               [&](std::string_view name) { return !has_head && name.starts_with(head); });
}

}  // namespace

bool names_classification_task(std::span<const std::string> words) {
  constexpr std::string_view kFlag = "--task";
  for (size_t i = 0; i < words.size(); ++i) {
    const std::string_view word = words[i];
    if (word == kFlag && i + 1 < words.size() && classification_task_of(words[i + 1])) return true;
    if (word.starts_with("--task=") && classification_task_of(word.substr(kFlag.size() + 1))) {
      return true;
    }
  }
  return false;
}

int train_classifier(std::span<const std::string> words, const comm::Group& world) {
  const LogScope on_first(world.rank() == 0);
  const auto started = std::chrono::steady_clock::now();
  ClassifyFlags flags;
  TrainingArgs args;
  std::vector<std::string> problems;
  if (!read_words(words, flags, args, problems)) return 0;
  collectively([&] {
    if (!problems.empty()) throw ConfigError(problems);
    apply_launcher_settings(args, world.size(), problems);
    if (!problems.empty()) throw ConfigError(problems);
  });
  const auto data = collectively([&] { return read_data(flags, args, world); });
  collectively([&] { apply_data(flags, *data, replicas_of(args.parallel, world.size()), args); });
  const PreparedRun begun = prepare_run(std::move(args), std::move(problems), world, started);
  check_memory(begun.args, world);
  ClassificationTask task(begun.args, begun.tokenizer, *data, {.keep_last = flags.keep_last});
  TrainingRun run(begun, task, world);
  run.load(begun.source);
  if (!begun.source.exists() && !flags.pretrained_checkpoint.empty()) {
    collectively([&] { load_pretrained(flags, begun.args, run); });
  }
  if (flags.epochs > 0) {
    run.train();
  } else if (begun.args.checkpoint.load.empty()) {
    task.measure(-1);
  } else {
    task.measure_and_predict(-1, begun.args.checkpoint.load);
  }
  return 0;
}

}  // namespace megatron::cli

#include "annex/retro/commands/retro_preprocess.h"

#include <fmt/format.h>

#include <chrono>
#include <filesystem>
#include <memory>
#include <nlohmann/json.hpp>
#include <string_view>
#include <system_error>
#include <type_traits>
#include <utility>
#include <vector>

#include "annex/retro/commands/retro_flags.h"
#include "annex/retro/data/retro_samples.h"
#include "annex/retro/data/work_directory.h"
#include "annex/retro/preprocess/bert_embedder.h"
#include "annex/retro/preprocess/chunk_builder.h"
#include "annex/retro/preprocess/embedder.h"
#include "annex/retro/preprocess/index_builder.h"
#include "annex/retro/preprocess/neighbor_query.h"
#include "megatron/cli/pretrain.h"
#include "megatron/comm/broadcast_object.h"
#include "megatron/comm/share_threads.h"
#include "megatron/comm/working.h"
#include "megatron/core/error.h"
#include "megatron/core/file.h"
#include "megatron/core/json.h"
#include "megatron/core/log.h"
#include "megatron/data/python_json.h"
#include "megatron/run/collectively.h"
#include "megatron/run/loaded_model.h"
#include "megatron/settings/training_args.h"
#include "megatron/tokenizers/tokenizer_files.h"
#include "megatron/training/microbatch_calculator.h"

namespace megatron::cli {
namespace {

using retro::RetroConfig;
using retro::Task;
using Json = nlohmann::ordered_json;

constexpr const char* kRetroPreprocessUsage =
    "megatron retro-preprocess --retro-workdir DIR --retro-gpt-data-path 1 PREFIX "
    "--train-samples N ... [flags]";

// The command line.
struct Settings {
  RetroFlags own;
  TrainingArgs training;
  Json values;  // of both, by name

  const RetroConfig& config() const { return own.config; }
};

Json json_of(const ArgValue& value) {
  return std::visit(
      []<class T>(const T& v) -> Json {
        if constexpr (std::is_same_v<T, std::monostate>) {
          return nullptr;
        } else if constexpr (std::is_same_v<T, DType>) {
          return text_of(ArgValue(v));
        } else {
          return v;
        }
      },
      value);
}

bool has_query(const RetroConfig& config) {
  for (const Task task : retro::tasks_of(config.retro_tasks)) {
    if (task == Task::kQueryNeighbors) return true;
  }
  return false;
}

// The training finds its neighbours by the samples' description, which these settings are part of.
void expect_same(const TrainingArgs& args, const char* dest, int64_t value, int64_t retro_value,
                 std::vector<std::string>& found) {
  if (!args.given.contains(dest) || value == retro_value) return;
  std::string flag = dest;
  for (char& letter : flag) letter = letter == '_' ? '-' : letter;
  found.push_back(fmt::format("--{} {} and --retro-gpt-{} {} must be equal: those of the training",
                              flag, value, flag, retro_value));
}

std::vector<std::string> problems_of(const RetroConfig& config, const TrainingArgs& args) {
  std::vector<std::string> found = retro::problems(config);
  const TrainingConfig& training = args.training;
  expect_same(args, "eval_interval", training.eval_interval, config.retro_gpt_eval_interval, found);
  expect_same(args, "eval_iters", training.eval_iters, config.retro_gpt_eval_iters, found);
  expect_same(args, "global_batch_size", training.global_batch_size,
              config.retro_gpt_global_batch_size, found);
  if (found.empty() && has_query(config) && training.train_samples == 0 &&
      training.train_iters == 0) {
    found.emplace_back(
        "--train-samples is required: the samples of the training, whose neighbours are searched");
  }
  if (args.parallel.tensor_model_parallel_size != 1 ||
      args.parallel.pipeline_model_parallel_size != 1) {
    found.emplace_back(
        "--tensor-model-parallel-size and --pipeline-model-parallel-size must be 1: ranks share "
        "the chunks, not the BERT");
  }
  if (config.bert_embedder_type == retro::EmbedderType::kMegatron && args.checkpoint.load.empty() &&
      config.retro_tasks != "db-build") {
    found.emplace_back(
        "--load is required: the BERT that embeds chunks; or give --bert-embedder-type hashed");
  }
  const std::vector<std::string>& data = args.data.data_path;
  bool is_other = !data.empty() && data.size() != config.retro_gpt_data_path.size();
  for (size_t i = 1; !is_other && i < data.size(); i += 2) {
    is_other = data[i] != config.retro_gpt_data_path[i];
  }
  if (is_other) {
    found.emplace_back(
        "--data-path must name the datasets of --retro-gpt-data-path in their order: documents are "
        "known by the number of their dataset");
  }
  return found;
}

// False after --help.
bool read_words(std::span<const std::string> words, Settings& settings,
                std::vector<std::string>& problems) {
  FlagTable table = retro_flags(settings.own);
  if (!read_training_words(table, kRetroPreprocessUsage, ModelKind::kBert, words, settings.training,
                           problems)) {
    return false;
  }
  const TrainingArgs& args = settings.training;
  if (problems.empty()) problems = problems_of(settings.config(), args);
  ArgMap all = arg_map(args);
  for (const auto& [name, value] : table.values({})) all[name] = value;
  settings.values = Json::object();
  for (const auto& [name, value] : all) settings.values[name] = json_of(value);
  return true;
}

// Files of a working directory depend on these settings without saying so in their names.
constexpr const char* kFixed[] = {
    "retro_block_size",          "retro_doc_block_size",   "retro_gpt_data_path",
    "retro_gpt_split",           "retro_gpt_chunk_length", "retro_gpt_tokenizer_type",
    "retro_gpt_vocab_file",      "retro_gpt_merge_file",   "retro_gpt_tokenizer_model",
    "retro_bert_tokenizer_type", "retro_bert_vocab_file",  "retro_bert_max_chunk_length",
    "bert_embedder_type",        "retro_index_nfeats",     "retro_index_ntrain"};

void expect_same_directory(const std::filesystem::path& path, const Json& now) {
  std::error_code ignored;
  if (!std::filesystem::exists(path, ignored)) return;
  const Json before = try_parse_json(read_text(path));
  if (!before.is_object()) {
    throw FormatError(path.string() + ": is not JSON; delete it, and the directory if in doubt");
  }
  std::vector<std::string> found;
  for (const char* const name : kFixed) {
    const auto old = before.find(name);
    if (old == before.end() || *old == now.at(name)) continue;
    found.push_back(fmt::format(
        "{} was {} when {} was made, and is {}; name another --retro-workdir or delete this one",
        name, shortened_json(*old), path.parent_path().string(), shortened_json(now.at(name))));
  }
  if (!found.empty()) throw ConfigError(found);
}

void prepare_directory(const Settings& settings) {
  const std::filesystem::path directory = settings.config().retro_workdir;
  const std::filesystem::path path = retro_args_file(directory);
  expect_same_directory(path, settings.values);
  std::error_code error;
  std::filesystem::create_directories(directory, error);  // the next line says it
  write_text_atomically(path, python_json(settings.values));
}

// A model that embeds, and its embedder; made when a task needs them.
class LazyEmbedder {
 public:
  LazyEmbedder(const Settings& settings, const Tokenizer& bert, const comm::Group& world)
      : settings_(settings), bert_(bert), world_(world) {}

  const retro::Embedder& get() {
    if (embedder_ == nullptr) open();
    return *embedder_;
  }

 private:
  void open() {
    const RetroConfig& config = settings_.config();
    if (config.bert_embedder_type == retro::EmbedderType::kHashed) {
      embedder_ = retro::make_hashed_embedder(config.retro_index_nfeats);
      return;
    }
    const TrainingArgs& args = settings_.training;
    model_ = load_model({.load = args.checkpoint.load,
                         .ckpt_step = args.checkpoint.ckpt_step,
                         .num_attention_heads = args.transformer.num_attention_heads,
                         .tokenizer = config.bert_tokenizer,
                         .num_threads = args.training.num_threads,
                         .device = args.training.device,
                         .has_replicas = true},
                        world_, is_encoder_only);
    collectively([&] {
      embedder_ = retro::make_bert_embedder(model_.bert_inference(), bert_,
                                            {.batch_size = config.retro_bert_batch_size,
                                             .max_length = config.retro_bert_max_chunk_length});
      if (embedder_->dimension() == config.retro_index_nfeats) return;
      throw ConfigError(
          fmt::format("--retro-index-nfeats {} must be the hidden size {} of the BERT of --load",
                      config.retro_index_nfeats, embedder_->dimension()));
    });
  }

  const Settings& settings_;
  const Tokenizer& bert_;
  const comm::Group& world_;
  LoadedModel model_;
  std::unique_ptr<const retro::Embedder> embedder_;
};

std::shared_ptr<const RetroSplits> open_samples(const Settings& settings, const Tokenizer& gpt,
                                                const comm::Group& world) {
  const RetroConfig& config = settings.config();
  TrainingConfig training = settings.training.training;
  training.global_batch_size = config.retro_gpt_global_batch_size;
  training.eval_interval = config.retro_gpt_eval_interval;
  training.eval_iters = config.retro_gpt_eval_iters;
  DataConfig data;
  data.data_path = settings.training.data.data_path.empty() ? config.retro_gpt_data_path
                                                            : settings.training.data.data_path;
  data.split = settings.training.given.contains("split") ? settings.training.data.split
                                                         : config.retro_gpt_split;
  data.data_cache_path = settings.training.data.data_cache_path;
  const comm::Working working(world, "building the data sets");
  return comm::broadcast_object(world, [&] {
    return std::make_shared<const RetroSplits>(
        build_retro_samples(data, config.retro_gpt_split, dataset_sizes_of(training),
                            config.retro_gpt_seq_length, config.retro_gpt_seed, gpt));
  });
}

std::string_view name_of(Task task) {
  switch (task) {
    case Task::kBuildDatabase:
      return "db-build";
    case Task::kTrainIndex:
      return "index-train";
    case Task::kAddToIndex:
      return "index-add";
    case Task::kQueryNeighbors:
      return "query-pretraining-neighbors";
  }
  throw InternalError("Task out of range");
}

void run_tasks(const Settings& settings, const comm::Group& world) {
  using Clock = std::chrono::steady_clock;
  const RetroConfig& config = settings.config();
  const auto open = [&](const TokenizerConfig& tokenizer) {
    return collectively([&] {
      return comm::broadcast_object(
          world, [&] { return std::shared_ptr<const Tokenizer>(make_tokenizer(tokenizer)); });
    });
  };
  // Training describes its samples by absolute paths, too.
  const std::shared_ptr<const Tokenizer> gpt = open(with_absolute_paths(config.gpt_tokenizer));
  const std::shared_ptr<const Tokenizer> bert = open(config.bert_tokenizer);
  LazyEmbedder embedder(settings, *bert, world);
  for (const Task task : retro::tasks_of(config.retro_tasks)) {
    const Clock::time_point begin = Clock::now();
    print_line(fmt::format("> start {}", name_of(task)));
    switch (task) {
      case Task::kBuildDatabase:
        retro::build_chunk_database(config, *gpt, *bert, world);
        break;
      case Task::kTrainIndex:
        retro::train_index(config, *gpt, embedder.get(), world);
        break;
      case Task::kAddToIndex:
        retro::add_to_index(config, *gpt, embedder.get(), world);
        break;
      case Task::kQueryNeighbors:
        retro::query_neighbors(config, *open_samples(settings, *gpt, world), *gpt, embedder.get(),
                               world);
        break;
    }
    print_line(fmt::format("> end {}, {:.1f} s", name_of(task),
                           std::chrono::duration<double>(Clock::now() - begin).count()));
  }
}

}  // namespace

int retro_preprocess(std::span<const std::string> words, const comm::Group& world) {
  const LogScope on_first(world.rank() == 0);
  Settings settings;
  std::vector<std::string> problems;
  if (!read_words(words, settings, problems)) return 0;
  if (!problems.empty()) throw CommonConfigError(problems);
  for (const std::string& warning : settings.training.warnings) warn(warning);
  comm::use_threads(settings.training.training.num_threads);
  on_first_rank(world, [&] { prepare_directory(settings); });
  run_tasks(settings, world);
  return 0;
}

}  // namespace megatron::cli

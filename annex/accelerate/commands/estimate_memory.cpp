#include "annex/accelerate/commands/estimate_memory.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <utility>
#include <vector>

#include "annex/accelerate/memory_estimate.h"
#include "megatron/cli/model_flags.h"
#include "megatron/cli/planned_args.h"
#include "megatron/core/error.h"
#include "megatron/core/hub_cache.h"
#include "megatron/core/log.h"
#include "megatron/formats/json_file.h"
#include "megatron/frontends/override_settings.h"
#include "megatron/interchange/source_settings.h"
#include "megatron/models/model_specs.h"
#include "megatron/models/plan/training_plan.h"
#include "megatron/run/memory_check.h"
#include "megatron/settings/training_args.h"

namespace megatron::cli {
namespace {

namespace fs = std::filesystem;

constexpr int64_t kLongestDefault = 1024;  // tokens of a sample if nothing says how many

struct EstimateFlags {
  std::vector<std::string> dtypes = {"float32", "float16", "int8", "int4"};
  int64_t data_parallel_size = 1;
  ModelKind kind = {};
  ArgMap unused;
};

FlagTable flags_of(EstimateFlags& estimate) {
  FlagTable flags;
  flags.group("estimate");
  flags.add("--dtypes", estimate.dtypes, "Types of the weights: float32, float16, int8, int4.");
  flags.add("--data-parallel-size", estimate.data_parallel_size,
            "Replicas of the model, which ZeRO divides it over.");
  add_model_type(flags, estimate.kind, "The kind of a model that flags describe.");
  flags.add_entry("--library_name", FlagType::kText, estimate.unused, {},
                  "Accepted: models are always those of transformers.");
  flags.add_entry("--trust_remote_code", FlagType::kSwitch, estimate.unused, false,
                  "Accepted: no code is loaded.");
  return flags;
}

// The model to estimate.
struct Model {
  std::string name = "the model of the flags";
  std::vector<std::string> words;  // flags of its training
  ModelKind kind = {};
  ArgMap settings;         // of a config.json or a checkpoint; empty: the flags say all
  int64_t vocab_size = 0;  // theirs
  std::optional<frontends::ModelSize> size;  // as Accelerate counts, where that is known
};

// The file config.json that a path names; empty if it names none.
fs::path config_file_of(const fs::path& path) {
  if (fs::is_directory(path)) {
    return fs::exists(path / "config.json") ? path / "config.json" : fs::path();
  }
  return path.extension() == ".json" ? path : fs::path();
}

void take_config(Model& model, const fs::path& file) {
  const nlohmann::json config = read_json(file);
  try {
    model.size = frontends::model_size_of(config, file.string());
  } catch (const ConfigError&) {
    // A type of model that is known here only: its parameters are counted.
  }
  const HfModel hf = read_hf_config(file);
  model.kind = hf.transformer.kind;
  model.settings = settings_of(hf);
  model.vocab_size = hf.vocab_size;
}

void take_checkpoint(Model& model, const fs::path& path) {
  const CheckpointSource source = find_source(path, 0, true);
  model.kind = source.kind();
  model.settings = source.args();
  model.vocab_size = true_vocab_size(model.settings);
  if (model.vocab_size == 0) model.vocab_size = vocabulary_of(source.contents()).shape[0];
}

Model model_of(const std::string& named, const EstimateFlags& estimate,
               std::vector<std::string> words) {
  Model model;
  model.words = std::move(words);
  model.kind = estimate.kind;
  if (named.empty()) return model;
  model.name = named;
  const std::optional<fs::path> path = find_model_path(named);
  if (!path) {
    throw ConfigError(
        fmt::format("{} does not exist, and Hugging Face's cache has no model of that name; name a "
                    "config.json, the folder of a downloaded model, or a checkpoint",
                    named));
  }
  const fs::path file = config_file_of(*path);
  file.empty() ? take_checkpoint(model, *path) : take_config(model, file);
  for (const char* const setting : {"tokenizer_type", "padded_vocab_size", "seq_length"}) {
    model.settings.erase(setting);
  }
  return model;
}

// The training settings, from the model's settings and usual values.
void fill(const Model& model, TrainingArgs& args) {
  TransformerConfig& c = args.transformer;
  if (!model.settings.empty()) {
    use_checkpoint_args(args, model.settings);
    frontends::OverrideSettings settings(args);
    const auto positions = model.settings.find("max_position_embeddings");
    if (positions != model.settings.end() && !args.given.contains("max_position_embeddings")) {
      settings.set("max_position_embeddings", positions->second, model.name);
    }
    if (!args.given.contains("seq_length")) {
      const int64_t most = c.max_position_embeddings;
      settings.set("seq_length", most > 0 ? std::min(most, kLongestDefault) : kLongestDefault,
                   model.name);
    }
    if (is_encoder_decoder(model.kind) && !args.given.contains("decoder_seq_length")) {
      settings.set("decoder_seq_length", c.seq_length, model.name);
    }
    args.tokenizer = {.tokenizer_type = "NullTokenizer", .vocab_size = model.vocab_size - 1};
  }
  fill_for_plan(args);
}

// The settings of its training, resolved; with a stage of ZeRO, or as the flags say.
TrainingArgs training_of(const Model& model, const EstimateFlags& estimate,
                         std::optional<int64_t> zero_stage, std::vector<std::string>& problems) {
  std::vector<std::string> words = model.words;
  if (zero_stage) words.insert(words.end(), {"--zero-stage", std::to_string(*zero_stage)});
  TrainingArgs args = parsed_flags(words, model.kind, problems);
  if (!problems.empty()) return args;
  fill(model, args);
  const ParallelConfig& p = args.parallel;
  const int64_t ranks_of_a_replica = std::max<int64_t>(p.tensor_model_parallel_size, 1) *
                                     std::max<int64_t>(p.pipeline_model_parallel_size, 1) *
                                     std::max<int64_t>(p.context_parallel_size, 1);
  args = resolved(std::move(args), ranks_of_a_replica * estimate.data_parallel_size, problems);
  if (problems.empty()) find_vocabulary(args);
  return args;
}

// The size of a model that Accelerate does not support: a layer, or a tensor outside of the layers,
// is never divided.
frontends::ModelSize size_of(const TransformerConfig& config) {
  std::map<std::string, int64_t> parts;
  for (const Parameter& spec : model_specs(config)) {
    const std::string mark = ".layers.";
    const size_t layers = spec.name.find(mark);
    const std::string part = layers == std::string::npos
                                 ? spec.name
                                 : spec.name.substr(0, spec.name.find('.', layers + mark.size()));
    parts[part] += spec.shape.numel();
  }
  constexpr int64_t kFp32 = 4;
  frontends::ModelSize size{.parameters = num_model_parameters(config)};
  size.total_bytes = size.parameters * kFp32;
  for (const auto& [part, count] : parts) {
    size.largest_layer_bytes = std::max(size.largest_layer_bytes, count * kFp32);
  }
  return size;
}

// Prints the last line end itself.
void print_table(std::string table) {
  table.pop_back();
  print_line(table);
}

std::string text_of_bytes(int64_t bytes) {
  return frontends::bytes_text(static_cast<double>(bytes));
}

std::vector<std::string> row_of(const TrainingArgs& args) {
  const DeviceType device =
      args.training.device == DeviceChoice::kCpu ? DeviceType::kCpu : DeviceType::kCuda;
  const RankMemory memory = largest_rank_memory(planned_training(args, device));
  const ParallelConfig& p = args.parallel;
  const int64_t stage = p.zero_stage > 0 ? p.zero_stage : p.use_distributed_optimizer ? 1 : 0;
  using enum MemoryCategory;
  return {fmt::format("ZeRO {}", stage),
          std::to_string(p.tensor_model_parallel_size),
          std::to_string(p.pipeline_model_parallel_size),
          std::to_string(p.data_parallel_size),
          text_of_bytes(memory.bytes(kParameters)),
          text_of_bytes(memory.bytes(kGradients)),
          text_of_bytes(memory.bytes(kOptimizer)),
          text_of_bytes(memory.bytes(kActivations) + memory.bytes(kWorkspace)),
          text_of_bytes(memory.total_bytes()),
          memory.peak_at};
}

// The memory of the largest rank, one row for each stage of ZeRO that is possible, or for that of
// the flags.
void print_training(const Model& model, const EstimateFlags& estimate, const TrainingArgs& args) {
  std::vector<std::vector<std::string>> rows = {{"sharding", "TP", "PP", "DP", "weights",
                                                 "gradients", "optimizer", "activations",
                                                 "a rank's peak", "at"}};
  std::vector<std::string> missing;
  if (args.given.contains("zero_stage") || args.given.contains("use_distributed_optimizer")) {
    rows.push_back(row_of(args));
  } else {
    for (int64_t stage = 0; stage <= 3; ++stage) {
      std::vector<std::string> problems;
      const TrainingArgs staged = training_of(model, estimate, stage, problems);
      if (problems.empty()) {
        rows.push_back(row_of(staged));
      } else {
        missing.push_back(fmt::format("ZeRO {}: {}", stage, problems.front()));
      }
    }
  }
  const TransformerConfig& c = args.transformer;
  print_table(frontends::boxed_table(
      fmt::format("Training {} parameters with Adam in {}, micro-batches of {} x {} tokens",
                  num_model_parameters(c), name_of(c.params_dtype), args.training.micro_batch_size,
                  c.seq_length),
      rows));
  for (const std::string& line : missing) print_line(line);
}

}  // namespace

int estimate_memory(std::span<const std::string> argv) {
  std::vector<std::string> words(argv.begin(), argv.end());
  std::string named;
  if (!words.empty() && !words[0].starts_with('-')) {
    named = words[0];
    words.erase(words.begin());
  }
  EstimateFlags estimate;
  FlagTable table = flags_of(estimate);
  const ParsedFlags own = table.parse(table.take_own(words));
  std::vector<std::string> problems = own.problems;
  if (estimate.data_parallel_size < 1) {
    problems.push_back(
        fmt::format("--data-parallel-size {} must be at least 1", estimate.data_parallel_size));
  }
  const auto is_help = [](const std::string& word) { return word == "--help" || word == "-h"; };
  if (std::ranges::any_of(words, is_help)) {
    print_line(
        "usage: megatron estimate-memory [model] [flags]\n\nPrints the memory of a model, and that "
        "of its training: [model] is a config.json, the folder of a model, or a checkpoint; "
        "without it flags of pretrain-gpt describe the model: --num-layers, --hidden-size, "
        "--num-attention-heads and --seq-length. Flags of the training, such as --bf16 and "
        "--tensor-model-parallel-size, count with both. `megatron plan` tells more.\n" +
        table.help());
    return 0;
  }
  if (named.empty() && words.empty()) {
    throw ConfigError(
        "estimate-memory: there is no model; name a config.json, the folder of a model or a "
        "checkpoint first, or give --num-layers, --hidden-size, --num-attention-heads and "
        "--seq-length");
  }
  if (!problems.empty()) throw ConfigError(problems);
  const Model model = model_of(named, estimate, std::move(words));
  const TrainingArgs args = training_of(model, estimate, std::nullopt, problems);
  if (!problems.empty()) throw ConfigError(problems);
  for (const std::string& warning : args.warnings) warn(warning);
  print_table(frontends::memory_table(
      model.name, model.size ? *model.size : size_of(args.transformer), estimate.dtypes));
  print_training(model, estimate, args);
  return 0;
}

}  // namespace megatron::cli

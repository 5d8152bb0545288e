#include "annex/deepspeed/bigscience_flags.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <iomanip>
#include <optional>
#include <regex>
#include <sstream>
#include <string_view>

#include "annex/deepspeed/partition.h"
#include "megatron/core/error.h"
#include "megatron/core/file.h"
#include "megatron/tokenizers/tokenizer.h"

namespace megatron::frontends {
namespace {

// A flag that is only a word of the command line; nothing if it is not given.
std::optional<std::string> text_given(const TrainingArgs& args, const char* dest) {
  const auto found = args.other.find(dest);
  if (!args.given.contains(dest) || found == args.other.end()) return std::nullopt;
  const std::string* text = std::get_if<std::string>(&found->second);
  return text != nullptr ? std::optional(*text) : std::nullopt;
}

void apply_heads(TrainingArgs& args, std::vector<std::string>& problems) {
  const std::optional<std::string> type = text_given(args, "attention_head_type");
  if (!type) return;
  TransformerConfig& c = args.transformer;
  if (*type == "multihead") {
    if (c.group_query_attention) {
      problems.emplace_back(
          "--attention-head-type multihead and --group-query-attention exclude each other; keep "
          "one");
    }
    return;
  }
  c.group_query_attention = true;
  c.num_query_groups = 1;
  args.given.insert({"group_query_attention", "num_query_groups"});
}

// DeepSpeed divides the saved inputs of recomputed layers among the ranks of tensor parallelism.
void apply_saved_activations(TrainingArgs& args) {
  if (!args.given.contains("partition_activations")) return;
  TransformerConfig& c = args.transformer;
  const bool recomputes =
      args.legacy.checkpoint_activations || c.recompute_granularity == RecomputeGranularity::kFull;
  if (recomputes && args.parallel.tensor_model_parallel_size > 1 &&
      !args.parallel.sequence_parallel) {
    c.distribute_saved_activations = true;
    args.given.insert("distribute_saved_activations");
    return;
  }
  args.warnings.emplace_back(
      "--partition-activations has no effect: it needs --checkpoint-activations and "
      "--tensor-model-parallel-size above 1, without --sequence-parallel");
}

// Gives the stages so many layers of the transformer each.
void divide(const std::string& method, const std::vector<int64_t>& layers, TrainingArgs& args,
            std::vector<std::string>& problems) {
  const bool has_empty = std::ranges::any_of(layers, [](int64_t count) { return count < 1; });
  if (has_empty) {
    problems.push_back(
        fmt::format("--pp-partition-method {} leaves a stage without a layer of the transformer "
                    "({} layers for {} stages); use type:transformer",
                    method, args.transformer.num_layers, layers.size()));
    return;
  }
  ParallelConfig& parallel = args.parallel;
  parallel.decoder_first_pipeline_num_layers = layers.front();
  parallel.decoder_last_pipeline_num_layers = layers.back();
  args.given.insert({"decoder_first_pipeline_num_layers", "decoder_last_pipeline_num_layers"});
}

// "uniform": DeepSpeed's list of layers in parts of one size, and the rest for the last stage.
void apply_uniform_partition(TrainingArgs& args, std::vector<std::string>& problems) {
  const int64_t stages = args.parallel.pipeline_model_parallel_size;
  const int64_t layers = std::max(args.transformer.num_layers, args.transformer.encoder_num_layers);
  if (stages < 2 || layers < 1) return;
  const int64_t entries = kEntriesBefore + layers + kEntriesBehind;
  std::vector<int64_t> parts(static_cast<size_t>(stages), entries / stages);
  parts.back() += entries % stages;
  divide("uniform", layers_of_parts(parts, layers), args, problems);
}

// The rows of the word embeddings, as the run will have them. Throws what make_tokenizer() throws.
int64_t vocabulary_rows(const TrainingArgs& args) {
  const TransformerConfig& c = args.transformer;
  for (const int64_t given : {c.pad_vocab_size_to, c.padded_vocab_size}) {
    if (given > 0) return given;
  }
  return padded_vocab_size(make_tokenizer(args.tokenizer)->vocab_size(),
                           c.make_vocab_size_divisible_by,
                           args.parallel.tensor_model_parallel_size);
}

// "parameters": DeepSpeed's list of layers in parts with about as many parameters each.
void apply_parameters_partition(TrainingArgs& args, std::vector<std::string>& problems) {
  const ParallelConfig& parallel = args.parallel;
  if (parallel.pipeline_model_parallel_size < 2) return;
  TransformerConfig config = args.transformer;
  if (config.has_encoder() || config.num_layers < 1 || config.hidden_size < 1 ||
      config.num_attention_heads < 1 || parallel.tensor_model_parallel_size < 1) {
    problems.emplace_back(
        "--pp-partition-method parameters counts those of a GPT, whose --num-layers, "
        "--hidden-size and --num-attention-heads must be given; use type:transformer");
    return;
  }
  try {
    config.padded_vocab_size = vocabulary_rows(args);
    config = resolved(config);
    const std::vector<int64_t> weights = entry_weights(config, parallel.tensor_model_parallel_size);
    const std::vector<int64_t> parts =
        balanced_parts(weights, parallel.pipeline_model_parallel_size);
    divide("parameters", layers_of_parts(parts, config.num_layers), args, problems);
  } catch (const Error& error) {
    problems.emplace_back(error.what());
  }
}

// "type:REGEX": the layers whose class names match are divided evenly.
void apply_partition(TrainingArgs& args, std::vector<std::string>& problems) {
  constexpr std::string_view kType = "type:";
  const std::optional<std::string> method = text_given(args, "pp_partition_method");
  if (!method) return;
  if (*method == "uniform") return apply_uniform_partition(args, problems);
  if (*method == "parameters") return apply_parameters_partition(args, problems);
  bool counts_layers = false;
  bool counts_embeddings = false;
  if (method->starts_with(kType)) {
    try {
      const std::regex pattern(method->substr(kType.size()), std::regex::icase);
      counts_layers = std::regex_search("ParallelTransformerLayerPipe", pattern);
      counts_embeddings = std::regex_search("EmbeddingPipe", pattern);
    } catch (const std::regex_error&) {  // named below
    }
  }
  if (!counts_layers) {
    problems.push_back(fmt::format(
        "--pp-partition-method {} is not available; use type:transformer, which divides the "
        "layers, type:transformer|embedding, which counts the embedding and the output as a layer "
        "each, uniform or parameters",
        *method));
    return;
  }
  if (!counts_embeddings) return;
  args.parallel.account_for_embedding_in_pipeline_split = true;
  args.parallel.account_for_loss_in_pipeline_split = true;
  args.given.insert(
      {"account_for_embedding_in_pipeline_split", "account_for_loss_in_pipeline_split"});
}

// A file with a line of groups in double quotes, separated by blanks.
void apply_groups_file(TrainingArgs& args, const char* dest, const char* target,
                       std::vector<std::string>& groups, std::vector<std::string>& problems) {
  const std::optional<std::string> path = text_given(args, dest);
  if (!path) return;
  if (args.given.contains(target)) {
    problems.push_back(
        fmt::format("the groups of {} are given as well; keep the flag or the file", *path));
    return;
  }
  try {
    std::istringstream text(read_text(*path));
    for (std::string group; text >> std::quoted(group);) groups.push_back(group);
  } catch (const Error& error) {
    problems.emplace_back(error.what());
    return;
  }
  if (groups.empty()) {
    problems.push_back(fmt::format(
        "{}: holds no group; write \"NAME: weight start:end prefix, ...\" with the quotes", *path));
    return;
  }
  args.given.insert(target);
}

}  // namespace

void load_universal_checkpoint(TrainingArgs& args) {
  const std::filesystem::path tracker =
      std::filesystem::path(args.checkpoint.load) / "latest_universal";
  if (args.checkpoint.load.empty() || !std::filesystem::exists(tracker)) return;
  std::istringstream text(read_text(tracker));
  std::string name;
  text >> name;
  args.checkpoint.load = (tracker.parent_path() / name).string();
}

void apply_bigscience_flags(TrainingArgs& args, std::vector<std::string>& problems) {
  apply_heads(args, problems);
  apply_saved_activations(args);
  apply_partition(args, problems);
  if (args.given.contains("universal_checkpoint")) load_universal_checkpoint(args);
  apply_groups_file(args, "train_weighted_split_paths_path", "train_data_path",
                    args.data.train_data_path, problems);
  apply_groups_file(args, "valid_weighted_split_paths_path", "valid_data_path",
                    args.data.valid_data_path, problems);
  apply_groups_file(args, "test_weighted_split_paths_path", "test_data_path",
                    args.data.test_data_path, problems);
}

}  // namespace megatron::frontends

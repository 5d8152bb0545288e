#include "megatron/frontends/deepspeed/bigscience_flags.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <iomanip>
#include <optional>
#include <regex>
#include <sstream>
#include <string_view>

#include "megatron/core/error.h"
#include "megatron/core/file.h"

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

// "uniform": DeepSpeed's list of layers in parts of one size, and the rest for the last stage. The
// list has three entries before the layers of the transformer (cast, embedding, transposition) and
// four behind them (transposition, norm, output, cast).
void apply_uniform_partition(TrainingArgs& args, std::vector<std::string>& problems) {
  constexpr int64_t kBefore = 3;
  constexpr int64_t kBehind = 4;
  ParallelConfig& parallel = args.parallel;
  const int64_t stages = parallel.pipeline_model_parallel_size;
  const int64_t layers = std::max(args.transformer.num_layers, args.transformer.encoder_num_layers);
  if (stages < 2 || layers < 1) return;
  const int64_t part = (kBefore + layers + kBehind) / stages;
  const int64_t first = part - kBefore;
  const int64_t last = layers - first - (stages - 2) * part;
  if (first < 1 || last < 1) {
    problems.push_back(
        fmt::format("--pp-partition-method uniform leaves a stage without a layer of the "
                    "transformer ({} layers "
                    "for {} stages); use type:transformer",
                    layers, stages));
    return;
  }
  parallel.decoder_first_pipeline_num_layers = first;
  parallel.decoder_last_pipeline_num_layers = last;
  args.given.insert({"decoder_first_pipeline_num_layers", "decoder_last_pipeline_num_layers"});
}

// "type:REGEX": the layers whose class names match are divided evenly.
void apply_partition(TrainingArgs& args, std::vector<std::string>& problems) {
  constexpr std::string_view kType = "type:";
  const std::optional<std::string> method = text_given(args, "pp_partition_method");
  if (!method) return;
  if (*method == "uniform") return apply_uniform_partition(args, problems);
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
        "each, or uniform",
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

// DeepSpeed's loader finds the universal checkpoint by a file of its own.
void apply_universal_checkpoint(TrainingArgs& args) {
  if (!args.given.contains("universal_checkpoint")) return;
  const std::filesystem::path tracker =
      std::filesystem::path(args.checkpoint.load) / "latest_universal";
  if (args.checkpoint.load.empty() || !std::filesystem::exists(tracker)) return;
  std::istringstream text(read_text(tracker));
  std::string name;
  text >> name;
  args.checkpoint.load = (tracker.parent_path() / name).string();
}

}  // namespace

void apply_bigscience_flags(TrainingArgs& args, std::vector<std::string>& problems) {
  apply_heads(args, problems);
  apply_saved_activations(args);
  apply_partition(args, problems);
  apply_universal_checkpoint(args);
  apply_groups_file(args, "train_weighted_split_paths_path", "train_data_path",
                    args.data.train_data_path, problems);
  apply_groups_file(args, "valid_weighted_split_paths_path", "valid_data_path",
                    args.data.valid_data_path, problems);
  apply_groups_file(args, "test_weighted_split_paths_path", "test_data_path",
                    args.data.test_data_path, problems);
}

}  // namespace megatron::frontends

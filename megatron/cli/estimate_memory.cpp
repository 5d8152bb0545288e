#include "megatron/cli/estimate_memory.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <vector>

#include "megatron/cli/command.h"
#include "megatron/core/error.h"
#include "megatron/core/file.h"
#include "megatron/core/log.h"
#include "megatron/frontends/accelerate/memory_estimate.h"
#include "megatron/settings/flag_table.h"

namespace megatron::cli {
namespace {

constexpr const char* kUsage =
    "megatron estimate-memory <model> [flags]\n\n"
    "Prints the memory of a model of transformers: <model> is a config.json or the folder of one. "
    "megatron plan tells more about a model that is given by flags.";

struct EstimateFlags {
  std::vector<std::string> dtypes = {"float32", "float16", "int8", "int4"};
  int64_t tensor_model_parallel_size = 1;
  int64_t pipeline_model_parallel_size = 1;
  int64_t data_parallel_size = 1;
  ArgMap unused;
};

FlagTable flags_of(EstimateFlags& estimate) {
  FlagTable flags;
  flags.group("estimate");
  flags.add("--dtypes", estimate.dtypes, "Types of the weights: float32, float16, int8, int4.");
  flags.add("--tensor-model-parallel-size", estimate.tensor_model_parallel_size,
            "Ranks that share each layer.");
  flags.add("--pipeline-model-parallel-size", estimate.pipeline_model_parallel_size,
            "Stages that the layers are divided into.");
  flags.add("--data-parallel-size", estimate.data_parallel_size, "Ranks that ZeRO shards over.");
  flags.add_entry("--library_name", FlagType::kText, estimate.unused, {},
                  "Accepted: models are always those of transformers.");
  flags.add_entry("--trust_remote_code", FlagType::kSwitch, estimate.unused, false,
                  "Accepted: no code is loaded.");
  return flags;
}

std::filesystem::path config_path(const std::string& model) {
  const std::filesystem::path path = model;
  if (std::filesystem::is_directory(path)) return path / "config.json";
  if (std::filesystem::exists(path)) return path;
  throw ConfigError(fmt::format(
      "{} does not exist; name a config.json, or the folder of a downloaded model", model));
}

// Prints the last line end itself.
void print_table(std::string table) {
  table.pop_back();
  print_line(table);
}

}  // namespace

int estimate_memory(std::span<const std::string> words) {
  EstimateFlags estimate;
  FlagTable flags = flags_of(estimate);
  const bool has_model = !words.empty() && !words[0].starts_with('-');
  const bool wants_help = std::ranges::any_of(
      words, [](const std::string& word) { return word == "--help" || word == "-h"; });
  if (!has_model && !wants_help) {
    throw ConfigError(
        "estimate-memory: there is no model; name a config.json or its folder first. megatron plan "
        "shows the memory of a model that flags describe");
  }
  if (!parse_flags(flags, kUsage, words.subspan(has_model ? 1 : 0))) return 0;
  const int64_t ranks_of_a_replica =
      estimate.tensor_model_parallel_size * estimate.pipeline_model_parallel_size;
  if (estimate.tensor_model_parallel_size < 1 || estimate.pipeline_model_parallel_size < 1 ||
      estimate.data_parallel_size < 1) {
    throw ConfigError("estimate-memory: parallel sizes must be at least 1");
  }
  const std::filesystem::path path = config_path(words[0]);
  const auto config = nlohmann::json::parse(read_text(path), nullptr, false);
  if (config.is_discarded()) {
    throw FormatError(fmt::format("{}: is not valid JSON; correct the file", path.string()));
  }
  const frontends::ModelSize size = frontends::model_size_of(config, path.string());
  print_table(frontends::memory_table(words[0], size, estimate.dtypes));
  print_table(frontends::zero_table((size.parameters + ranks_of_a_replica - 1) / ranks_of_a_replica,
                                    estimate.data_parallel_size));
  return 0;
}

}  // namespace megatron::cli

#include "megatron/cli/merge_datasets.h"

#include <fmt/format.h>

#include <filesystem>
#include <vector>

#include "megatron/cli/command.h"
#include "megatron/core/error.h"
#include "megatron/core/log.h"
#include "megatron/data/dataset_tools.h"
#include "megatron/settings/flag_table.h"

namespace megatron::cli {
namespace {

struct MergeArgs {
  std::string input;
  std::vector<std::string> datasets;
  std::string output_prefix;
  bool multimodal = false;
};

std::vector<std::string> problems(const MergeArgs& args) {
  std::vector<std::string> wrong;
  if (args.input.empty() == args.datasets.empty()) {
    wrong.emplace_back("give either --input DIR or --datasets PREFIX...");
  }
  if (args.output_prefix.empty()) {
    wrong.emplace_back(
        "--output-prefix is missing; give the path of the dataset to write, without "
        ".bin and .idx");
  }
  return wrong;
}

}  // namespace

int merge_datasets(std::span<const std::string> words) {
  MergeArgs args;
  FlagTable flags;
  flags.group("input");
  flags.add("--input", args.input, "Directory whose datasets are merged, by name.")
      .none()
      .required();
  flags.add("--datasets", args.datasets, "Prefixes of the datasets, in this order.").none();
  flags.add_switch("--multimodal", args.multimodal, "The datasets hold a mode per sequence.");
  flags.group("output");
  flags.add("--output-prefix", args.output_prefix, "Path of the result, without .bin and .idx.")
      .none()
      .required();
  if (!parse_flags(flags, "megatron merge-datasets --input DIR --output-prefix PATH [flags]",
                   words)) {
    return 0;
  }
  const std::vector<std::string> wrong = problems(args);
  if (!wrong.empty()) throw ConfigError(wrong);

  const std::vector<std::filesystem::path> inputs =
      args.datasets.empty()
          ? datasets_in(args.input)
          : std::vector<std::filesystem::path>(args.datasets.begin(), args.datasets.end());
  const DatasetCounts counts =
      megatron::merge_datasets(inputs, args.output_prefix, {.multimodal = args.multimodal});
  print_line(fmt::format("wrote {0}.bin and {0}.idx", args.output_prefix));
  print_line(fmt::format("{} datasets, {} documents, {} tokens", inputs.size(), counts.documents,
                         counts.tokens));
  return 0;
}

}  // namespace megatron::cli

#include "annex/corpus/commands/corpus_tool.h"
#include "annex/corpus/line_tools.h"
#include "megatron/cli/command.h"
#include "megatron/core/error.h"

// megatron corpus merge, add-id.
namespace megatron::cli {

int merge_json_files(std::span<const std::string> words) {
  constexpr const char* kUsage =
      "megatron corpus merge --json_path DIR --output_file FILE [flags]\n\n"
      "Joins the files *.json of a folder, by name. They have one JSON object a line; other lines\n"
      "are left out.\n";
  std::string folder = ".";
  std::string output = "merged_output.json";
  CorpusRunFlags run;
  FlagTable flags;
  flags.group("files");
  flags.add("--json_path", folder, "Folder of the files.");
  flags.add("--output_file", output, "The file to write.");
  add_run_flags(flags, run);
  if (!parse_flags(flags, kUsage, words)) return 0;
  report_lines(corpus::merge_json_files(folder, output, run_options(run)), output);
  return 0;
}

int add_ids(std::span<const std::string> words) {
  constexpr const char* kUsage =
      "megatron corpus add-id --input-file FILE --output-file FILE --id-prefix TEXT [flags]\n\n"
      "Adds \"adlr_id\": \"<prefix>-0000000001\" to the first document, and so on.\n";
  std::string input;
  std::string output;
  std::string prefix;
  CorpusRunFlags run{.workers = 0, .log_interval = 100};
  FlagTable flags;
  flags.group("files");
  flags.add("--input-file", input, "File with one JSON object a line.").none();
  flags.add("--output-file", output, "The file to write.").none();
  flags.add("--id-prefix", prefix, "Start of each id.").none();
  add_run_flags(flags, run);
  if (!parse_flags(flags, kUsage, words)) return 0;
  std::vector<std::string> wrong;
  if (input.empty()) wrong.emplace_back("--input-file is missing; give a file of JSON lines");
  if (output.empty()) wrong.emplace_back("--output-file is missing; give the file to write");
  if (prefix.empty()) wrong.emplace_back("--id-prefix is missing; give the start of each id");
  if (!wrong.empty()) throw ConfigError(wrong);
  report_lines(corpus::add_ids(input, output, prefix, run_options(run)), output);
  return 0;
}

}  // namespace megatron::cli

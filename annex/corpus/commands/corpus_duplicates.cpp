#include <fmt/format.h>

#include "annex/corpus/commands/corpus_tool.h"
#include "annex/corpus/duplicate_groups.h"
#include "annex/corpus/near_duplicates.h"
#include "megatron/cli/command.h"
#include "megatron/core/error.h"
#include "megatron/core/log.h"
#include "megatron/core/number_text.h"

// megatron corpus find-duplicates, group-duplicates, remove-duplicates.
namespace megatron::cli {
namespace {

constexpr const char* kFindUsage =
    "megatron corpus find-duplicates --inputs FILE KEY [FILE KEY ...] --output FILE [flags]\n\n"
    "Finds documents that are nearly equal. Documents with similar fingerprints (MinHash) are\n"
    "compared. If two share more than half of their sequences of 5 characters, they are written:\n"
    "one main document a line, with its similar ones. The inputs have one JSON object a line,\n"
    "with \"text\", and with the id of the document under KEY.\n";

struct FindArgs {
  corpus::NearDuplicatesConfig config;
  std::vector<std::string> inputs;
  std::vector<std::string> load_fingerprints;
  std::string save_fingerprints;
  std::string output;
  bool jaccard_parallel = false;
  CorpusRunFlags run;
};

FlagTable flags_of(FindArgs& args) {
  corpus::NearDuplicatesConfig& config = args.config;
  FlagTable flags;
  flags.group("files");
  flags.add("--inputs", args.inputs, "Files, each followed by the key of its ids.").none();
  flags
      .add("--load-fingerprints", args.load_fingerprints,
           "Files of --save-fingerprints: documents that were read before.")
      .none();
  flags
      .add("--save-fingerprints", args.save_fingerprints,
           "File for the documents and their fingerprints.")
      .none();
  flags.add("--output", args.output, "File for the similar documents.").none();
  flags.add_switch("--texts-on-disk", config.texts_on_disk,
                   "Keep the texts in a temporary file beside the output, not in memory.");
  flags.group("search");
  flags.add_choice("--jaccard", config.jaccard,
                   {{"union", corpus::Jaccard::kUnion},
                    {"min", corpus::Jaccard::kMin},
                    {"max", corpus::Jaccard::kMax}},
                   "Similarity: common sequences over those of both, of the shorter or of the "
                   "longer document.");
  flags.add("--heuristic-iter", config.heuristic_iter,
            "Random documents of a bucket that are compared with all others of it; -1: all pairs.");
  flags.add("--num-bands", config.num_bands,
            "Parts of a fingerprint. Documents that agree in one part are compared.");
  flags.add("--num-seeds", config.num_seeds,
            "Numbers of a fingerprint; a multiple of --num-bands.");
  flags.add("--seed", config.seed, "Seed of all random choices.");
  flags.add_switch("--jaccard-parallel", args.jaccard_parallel,
                   "Accepted: documents are always compared by all workers.");
  add_run_flags(flags, args.run);
  return flags;
}

std::vector<corpus::KeyedFile> keyed_files(const std::vector<std::string>& words) {
  if (words.size() % 2 != 0) {
    throw ConfigError(
        fmt::format("--inputs has {} words; give a key after each file, for example "
                    "--inputs data.json url",
                    words.size()));
  }
  std::vector<corpus::KeyedFile> files;
  for (size_t i = 0; i < words.size(); i += 2) files.push_back({words[i], words[i + 1]});
  return files;
}

}  // namespace

int find_duplicates(std::span<const std::string> words) {
  FindArgs args;
  FlagTable flags = flags_of(args);
  if (!parse_flags(flags, kFindUsage, words)) return 0;
  args.config.inputs = keyed_files(args.inputs);
  args.config.load_fingerprints.assign(args.load_fingerprints.begin(),
                                       args.load_fingerprints.end());
  args.config.save_fingerprints = args.save_fingerprints;
  args.config.output = args.output;
  const corpus::NearDuplicatesCounts counts =
      corpus::find_near_duplicates(args.config, run_options(args.run));
  warn_of_bad_lines(counts.bad_lines);
  if (counts.repeated_ids > 0) {
    warn(
        fmt::format("documents left out because their ids were repeated: {}", counts.repeated_ids));
  }
  if (!args.save_fingerprints.empty()) {
    print_line(fmt::format("wrote {}: {} documents", args.save_fingerprints, counts.documents));
  }
  if (!args.output.empty()) {
    print_line(fmt::format("wrote {}: {} documents, {} buckets, {} pairs compared, {} similar",
                           args.output, counts.documents, counts.buckets, counts.compared,
                           counts.pairs));
  }
  return 0;
}

int group_duplicates(std::span<const std::string> words) {
  constexpr const char* kUsage =
      "megatron corpus group-duplicates PAIRS GROUPS [THRESHOLD] [flags]\n\n"
      "Reads PAIRS, the output of find-duplicates, and writes GROUPS, one group a line. A pair "
      "whose\n"
      "similarity is at least THRESHOLD (0.7) links its documents.\n";
  const std::vector<std::string> leading = take_leading_words(words);
  CorpusRunFlags run;
  FlagTable flags;
  add_run_flags(flags, run);
  if (!parse_flags(flags, kUsage, words)) return 0;
  expect_words(leading, 2, 3, kUsage);
  double threshold = 0.7;
  if (leading.size() == 3) {
    const std::optional<double> number = number_of(leading[2]);
    if (!number || !(*number >= 0 && *number <= 1)) {
      throw ConfigError(fmt::format("THRESHOLD {} must be a number in [0, 1]", leading[2]));
    }
    threshold = *number;
  }
  const corpus::GroupCounts counts =
      corpus::group_duplicates(leading[0], leading[1], threshold, run_options(run));
  warn_of_bad_lines(counts.bad_lines);
  print_line(fmt::format("wrote {}: {} groups, {} documents to remove", leading[1], counts.groups,
                         counts.removable));
  return 0;
}

int remove_duplicates(std::span<const std::string> words) {
  constexpr const char* kUsage =
      "megatron corpus remove-duplicates GROUPS DATA OUTPUT [flags]\n\n"
      "Copies the documents of DATA to OUTPUT. Of each group of GROUPS, the output of\n"
      "group-duplicates, only the document with the first \"url\" is copied.\n";
  const std::vector<std::string> leading = take_leading_words(words);
  CorpusRunFlags run;
  FlagTable flags;
  add_run_flags(flags, run);
  if (!parse_flags(flags, kUsage, words)) return 0;
  expect_words(leading, 3, 3, kUsage);
  const corpus::RemovalCounts counts =
      corpus::remove_group_duplicates(leading[0], leading[1], leading[2], run_options(run));
  report_lines(counts.lines, leading[2]);
  print_line(fmt::format("{} groups, {} documents removed", counts.groups, counts.removed));
  return 0;
}

}  // namespace megatron::cli

#include <fmt/format.h>

#include <filesystem>

#include "annex/corpus/commands/corpus_tool.h"
#include "annex/corpus/filter_ngrams.h"
#include "megatron/cli/command.h"
#include "megatron/core/error.h"
#include "megatron/core/log.h"

// megatron corpus filter-ngrams.
namespace megatron::cli {
namespace {

constexpr const char* kFilterUsage =
    "megatron corpus filter-ngrams --tasks NAME... --task-file NAME=FILE[:MEMBER]...\n"
    "         --dedup-dataset FILE KEY --output FILE [flags]\n\n"
    "Removes the texts of evaluation tasks from a corpus. Documents are cut around each sequence\n"
    "of 13 words that a task also has, and around each shorter text of a task of at least 8 "
    "words.\n";

struct FilterArgs {
  corpus::FilterNgramsConfig config;
  std::string lambada_path;
  std::vector<std::string> task_files;
  std::vector<std::string> dedup_dataset;
  std::string output;
  std::string save_dictionary;
  std::string load_dictionary;
  CorpusRunFlags run;
};

FlagTable flags_of(FilterArgs& args) {
  corpus::FilterNgramsConfig& config = args.config;
  FlagTable flags;
  flags.group("files");
  flags.add("--tasks", config.tasks, "Names of the evaluation tasks, which split_id shows.").none();
  flags
      .add("--task-file", args.task_files,
           "NAME=FILE or NAME=FILE:MEMBER: JSON lines of a task and the member with its texts. "
           "MEMBER is question for squad, natural_questions, triviaqa, webqa, race and drop, "
           "questions for coqa, goal for piqa, else text.")
      .none();
  flags.add("--lambada-path", args.lambada_path, "The file of the task lambada.").none();
  flags.add("--dedup-dataset", args.dedup_dataset, "The corpus, and the key of its texts.").none();
  flags.add("--output", args.output, "The file to write.").none();
  flags.add("--save-dictionary", args.save_dictionary, "File for the sequences to cut out.").none();
  flags
      .add("--load-dictionary", args.load_dictionary,
           "File of --save-dictionary, in place of reading tasks and counting.")
      .none();
  flags.group("sequences");
  flags.add("--max-ngram-size", config.max_ngram_size, "Words of a sequence.");
  flags.add("--min-ngram-size", config.min_ngram_size, "Least words of a task's text.");
  flags.add("--key-threshold", config.key_threshold,
            "Keep sequences that the corpus has at least this many times: they are common speech.");
  flags.group("pieces");
  flags.add("--remove-char-each-side", config.remove_char_each_side,
            "Characters to remove on each side of a sequence, up to the end of a sentence.");
  flags.add("--filter-text-char-len", config.filter_text_char_len,
            "Pieces of at most this many characters are dropped.");
  flags.add("--splits-count", config.splits_count,
            "Documents that break into more pieces are dropped.");
  flags.group("run");
  flags.add("--num-threads,--workers", args.run.workers, "Threads. All cores if not given.")
      .none()
      .at_most(kMaxThreads);
  flags.add("--log-interval", args.run.log_interval, "Lines between progress reports.");
  return flags;
}

// NAME=FILE or NAME=FILE:MEMBER. A file whose name has the colon wins.
corpus::TaskFile task_file_of(const std::string& word) {
  const size_t sign = word.find('=');
  if (sign == 0 || sign == std::string::npos || sign + 1 == word.size()) {
    throw ConfigError(fmt::format("--task-file {} must be NAME=FILE or NAME=FILE:MEMBER", word));
  }
  corpus::TaskFile task = {word.substr(0, sign), word.substr(sign + 1), ""};
  const std::string file = task.file.string();
  const size_t colon = file.rfind(':');
  if (colon == std::string::npos || std::filesystem::exists(file)) return task;
  task.file = file.substr(0, colon);
  task.field = file.substr(colon + 1);
  return task;
}

void resolve(FilterArgs& args) {
  for (const std::string& word : args.task_files) {
    args.config.task_files.push_back(task_file_of(word));
  }
  if (!args.lambada_path.empty()) {
    args.config.task_files.push_back({"lambada", args.lambada_path, "text"});
  }
  if (args.dedup_dataset.size() == 2) {
    args.config.dedup_dataset = args.dedup_dataset[0];
    args.config.key = args.dedup_dataset[1];
  } else if (!args.dedup_dataset.empty()) {
    throw ConfigError(
        fmt::format("--dedup-dataset has {} words; give a file and a key, for "
                    "example --dedup-dataset data.json text",
                    args.dedup_dataset.size()));
  }
  args.config.output = args.output;
  args.config.save_dictionary = args.save_dictionary;
  args.config.load_dictionary = args.load_dictionary;
}

}  // namespace

int filter_ngrams(std::span<const std::string> words) {
  FilterArgs args;
  FlagTable flags = flags_of(args);
  if (!parse_flags(flags, kFilterUsage, words)) return 0;
  resolve(args);
  const corpus::FilterNgramsCounts counts =
      corpus::filter_ngrams(args.config, run_options(args.run));
  warn_of_bad_lines(counts.bad_lines);
  print_line(fmt::format("{} sequences of tasks, {} of them too frequent to cut out", counts.ngrams,
                         counts.frequent));
  print_line(fmt::format("{} documents: {} split, {} ignored, {} over the threshold, {} trimmed",
                         counts.documents, counts.split, counts.ignored, counts.over_threshold,
                         counts.trimmed));
  print_line(fmt::format("wrote {}: {} lines", args.output, counts.written));
  return 0;
}

}  // namespace megatron::cli

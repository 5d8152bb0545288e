#include "megatron/cli/preprocess_data.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <thread>

#include "megatron/cli/command.h"
#include "megatron/core/error.h"
#include "megatron/core/log.h"
#include "megatron/data/preprocess.h"
#include "megatron/settings/flag_table.h"
#include "megatron/settings/tokenizer_flags.h"
#include "megatron/tokenizers/tokenizer.h"

namespace megatron::cli {
namespace {

struct PreprocessArgs {
  PreprocessConfig run;
  TokenizerConfig tokenizer{.tokenizer_type = "GPT2BPETokenizer"};
  ArgMap without_effect;
};

FlagTable flags_of(PreprocessArgs& args) {
  FlagTable flags;
  flags.group("input");
  flags
      .add("--input", args.run.input,
           "File with one JSON object per line, also compressed with gzip or xz; a glob pattern if "
           "--partitions > 1.")
      .none()
      .required();
  flags.add("--json-keys,--json-key", args.run.json_keys,
            "Keys of the texts; each makes one dataset.");
  flags.add_switch("--skip-bad-lines", args.run.skip_bad_lines,
                   "Report and count lines that cannot be read instead of stopping at the first.");
  flags.add_switch("--skip-empty-documents", args.run.skip_empty_documents,
                   "Skip documents without tokens, like Megatron-DeepSpeed.");
  flags.add_switch("--split-sentences", args.run.split_sentences,
                   "Split documents into sentences, as BERT and T5 need.");
  flags.add_switch("--keep-newlines", args.run.keep_newlines,
                   "Keep the white space after sentences.");
  flags.add(
      "--lang", args.run.lang,
      "Language of the sentences: english, or one that NLTK's punkt_tab under NLTK_DATA has.");

  flags.group("tokenizer");
  add_tokenizer_flags(flags, args.tokenizer);
  flags.add_switch("--append-eod", args.run.append_eod, "End each document with the eod token.");
  flags.add_entry("--make-vocab-size-divisible-by", FlagType::kInt, args.without_effect,
                  int64_t{128}, "Only training pads the vocabulary.");

  flags.group("output");
  flags
      .add("--output-prefix", args.run.output_prefix,
           "Path of the datasets, without _<key>_document.bin and .idx (_sentence with "
           "--split-sentences).")
      .none()
      .required();
  flags.add("--dataset-impl", args.run.dataset_impl,
            "Format of the dataset: mmap, or the older TNTIDX by cached or lazy.");

  flags.group("run");
  args.run.workers = 0;
  flags
      .add("--workers", args.run.workers,
           "Threads; a multiple of --partitions. All cores if not given.")
      .none()
      .at_most(kMaxThreads);
  flags
      .add("--partitions", args.run.partitions,
           "Distribute the lines of all input files round-robin over this many parts, and "
           "concatenate these.")
      .at_most(kMaxThreads);
  flags.add_switch("--keep-sequential-samples", args.run.keep_sequential_samples,
                   "With --partitions, keep the order of the lines.");
  flags.add("--log-interval", args.run.log_interval, "Documents between progress reports.");
  return flags;
}

int64_t all_cores(int64_t partitions) {
  const int64_t cores = std::max<int64_t>(std::thread::hardware_concurrency(), 1);
  const int64_t step = std::max<int64_t>(partitions, 1);
  return std::max(cores / step, int64_t{1}) * step;
}

void report_progress(const PreprocessStats& stats) {
  const std::string line =
      fmt::format("Processed {} documents ({:.0f} docs/s, {:.2f} MB/s).\n", stats.documents,
                  static_cast<double>(stats.documents) / stats.seconds,
                  static_cast<double>(stats.input_bytes) / stats.seconds / 1e6);
  std::fputs(line.c_str(), stderr);  // unlike fmt::print, this never throws
}

}  // namespace

int preprocess_data(std::span<const std::string> words) {
  PreprocessArgs args;
  FlagTable flags = flags_of(args);
  if (!parse_flags(flags, "megatron preprocess-data --input FILE --output-prefix PATH [flags]",
                   words)) {
    return 0;
  }
  if (args.run.workers == 0) args.run.workers = all_cores(args.run.partitions);
  const std::vector<std::string> wrong = problems(args.run);
  if (!wrong.empty()) throw ConfigError(wrong);

  // Compat: the default of Megatron-LM's tool, for data with ready-made ids.
  const bool is_null = args.tokenizer.tokenizer_type == "NullTokenizer";
  if (is_null && args.tokenizer.vocab_size == 0) args.tokenizer.vocab_size = 786;
  const std::unique_ptr<Tokenizer> tokenizer = make_tokenizer(args.tokenizer);
  if (args.tokenizer.tokenizer_type.starts_with("BertWordPiece") && !args.run.split_sentences) {
    warn(
        "pretrain-bert reads sentences; give --split-sentences, unless each text is a list of "
        "them");
  }
  const PreprocessStats stats =
      preprocess(args.run, *tokenizer,
                 {.on_progress = report_progress,
                  .on_bad_line = [](const std::string& line) { warn(line + "; line left out"); }});
  if (stats.documents % args.run.log_interval != 0) report_progress(stats);
  if (stats.bad_lines > 0) warn(fmt::format("bad lines left out: {}", stats.bad_lines));
  if (stats.empty_documents > 0) {
    warn(fmt::format("documents without tokens: {}, {}", stats.empty_documents,
                     args.run.skip_empty_documents ? "left out" : "kept as empty documents"));
  }
  for (const std::string& key : args.run.json_keys) {
    print_line(fmt::format("wrote {}.bin and .idx", dataset_prefix(args.run, key)));
  }
  print_line(fmt::format("{} documents, {} tokens, {:.1f} s", stats.documents, stats.tokens,
                         stats.seconds));
  return 0;
}

}  // namespace megatron::cli

#include <fmt/format.h>

#include <filesystem>
#include <optional>

#include "annex/corpus/clean.h"
#include "annex/corpus/commands/corpus_tool.h"
#include "annex/corpus/url_filter.h"
#include "megatron/cli/command.h"
#include "megatron/core/error.h"
#include "megatron/core/hub_cache.h"
#include "megatron/core/log.h"
#include "megatron/tokenizers/tokenizer.h"
#include "megatron/tokenizers/tokenizer_files.h"

// megatron corpus blacklist-urls, clean, fix.
namespace megatron::cli {

int blacklist_urls(std::span<const std::string> words) {
  constexpr const char* kUsage =
      "megatron corpus blacklist-urls FOLDER OUTPUT [flags]\n\n"
      "Reads the files *.txt of FOLDER, which have a URL a line, and writes the URLs that are "
      "worth\n"
      "downloading. Rejects sites and ends of paths on lists, URLs of at most 8 bytes, malformed\n"
      "ones, and repetitions.\n";
  const std::vector<std::string> leading = take_leading_words(words);
  std::string domain_list;
  std::string extension_list;
  std::string suffix_list;
  CorpusRunFlags run;
  FlagTable flags;
  flags.group("lists");
  flags
      .add("--domain-list", domain_list,
           "Names of rejected sites, one a line: \"example\" rejects example.com and "
           "news.example.co.uk. Replaces the built-in list.")
      .none();
  flags
      .add("--extension-list", extension_list,
           "Rejected ends of paths, one a line, such as .zip. Replaces the built-in list.")
      .none();
  flags
      .add("--suffix-list", suffix_list,
           "The list of publicsuffix.org, in place of the built-in list of common suffixes.")
      .none();
  add_run_flags(flags, run);
  if (!parse_flags(flags, kUsage, words)) return 0;
  expect_words(leading, 2, 2, kUsage);
  const corpus::UrlCounts counts = corpus::filter_urls({.input = leading[0],
                                                        .output = leading[1],
                                                        .domain_list = domain_list,
                                                        .extension_list = extension_list,
                                                        .suffix_list = suffix_list},
                                                       run_options(run));
  print_line(
      fmt::format("rejected: {} by domain, {} by extension, {} short, {} malformed, {} "
                  "repeated",
                  counts.bad_domains, counts.bad_extensions, counts.short_urls, counts.malformed,
                  counts.duplicates));
  print_line(fmt::format("wrote {}: {} of {} URLs", leading[1], counts.written, counts.urls));
  return 0;
}

namespace {

// Compat: Megatron-LM's script downloads the tokenizer.
TokenizerConfig cached_gpt2() {
  for (const char* name : {"gpt2", "openai-community/gpt2"}) {
    const std::optional<std::filesystem::path> folder = find_model_path(name);
    if (!folder) continue;
    if (std::optional<TokenizerConfig> found = tokenizer_of_model(*folder)) return *found;
  }
  throw ConfigError(
      "short texts are counted in tokens of GPT-2, and Hugging Face's cache has no gpt2; give "
      "--vocab-file vocab.json and --merge-file merges.txt");
}

}  // namespace

int clean_documents(std::span<const std::string> words) {
  constexpr const char* kUsage =
      "megatron corpus clean INPUT OUTPUT [--vocab-file FILE --merge-file FILE] [flags]\n\n"
      "Repairs texts that were decoded wrongly, and their Unicode. Drops documents that are not\n"
      "English, by a rule of thumb, and those of less than 1024 characters and 128 tokens of "
      "GPT-2.\n";
  const std::vector<std::string> leading = take_leading_words(words);
  TokenizerConfig tokenizer{.tokenizer_type = "GPT2BPETokenizer"};
  CorpusRunFlags run;
  FlagTable flags;
  flags.group("tokenizer");
  flags
      .add("--vocab-file", tokenizer.vocab_file,
           "GPT-2's vocab.json; that of gpt2 in Hugging Face's cache if not given.")
      .none();
  flags
      .add("--merge-file", tokenizer.merge_file,
           "GPT-2's merges.txt; that of gpt2 in Hugging Face's cache if not given.")
      .none();
  add_run_flags(flags, run);
  if (!parse_flags(flags, kUsage, words)) return 0;
  expect_words(leading, 2, 2, kUsage);
  if (tokenizer.vocab_file.empty() && tokenizer.merge_file.empty()) tokenizer = cached_gpt2();
  const corpus::CleanCounts counts =
      corpus::clean_documents(leading[0], leading[1], *make_tokenizer(tokenizer), run_options(run));
  report_lines(counts.lines, leading[1]);
  print_line(fmt::format("{} repaired; dropped: {} not English, {} short", counts.repaired,
                         counts.not_english, counts.short_texts));
  return 0;
}

int fix_documents(std::span<const std::string> words) {
  constexpr const char* kUsage =
      "megatron corpus fix --input-files FILE... --tasks NAME... --output-path FOLDER [flags]\n\n"
      "Writes FOLDER/<name>_cleaned.<ext> and, with what was dropped, <name>_filtered.<ext>. The\n"
      "first task that applies to a document is the only one that is done:\n\n"
      "  remove_512              drop texts of less than 512 characters\n"
      "  remove_256_javascript   drop texts of less than 256 characters with \"javascript\"\n"
      "  remove_512_non_english  drop texts of less than 512 characters that are not English\n"
      "  ftfy_fix_text           repair texts that were decoded wrongly, and their Unicode\n"
      "  general_cleaning        one blank for several, and for line ends behind words\n";
  std::vector<std::string> inputs;
  std::vector<std::string> names;
  std::string folder;
  CorpusRunFlags run{.workers = 0, .log_interval = 100};
  FlagTable flags;
  flags.group("files");
  flags.add("--input-files", inputs, "Files with one JSON object a line.").none();
  flags.add("--tasks", names, "What to do; see above.").none();
  flags.add("--output-path", folder, "Folder for the new files; it is made if need be.").none();
  add_run_flags(flags, run);
  if (!parse_flags(flags, kUsage, words)) return 0;
  std::vector<std::string> wrong;
  if (inputs.empty()) wrong.emplace_back("--input-files is missing; give files of JSON lines");
  if (names.empty()) wrong.emplace_back("--tasks is missing; --help lists the tasks");
  if (folder.empty()) wrong.emplace_back("--output-path is missing; give a folder");
  if (!wrong.empty()) throw ConfigError(wrong);
  std::filesystem::create_directories(folder);
  std::vector<corpus::FixTask> tasks;
  for (const std::string& name : names) tasks.push_back(corpus::fix_task_named(name));
  for (const std::string& input : inputs) {
    const corpus::FixCounts counts = corpus::fix_documents(input, folder, tasks, run_options(run));
    warn_of_bad_lines(counts.lines.bad);
    print_line(
        fmt::format("{}: {} of {} documents kept; {} under 512 characters, {} JavaScript, "
                    "{} not English, {} repaired, {} with single blanks",
                    input, counts.lines.written, counts.lines.lines, counts.by_task[0],
                    counts.by_task[1], counts.by_task[2], counts.by_task[3], counts.by_task[4]));
  }
  return 0;
}

}  // namespace megatron::cli

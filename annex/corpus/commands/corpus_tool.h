#pragma once

#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "annex/corpus/lines.h"
#include "megatron/cli/command.h"
#include "megatron/settings/flag_table.h"

// Shared by the tools of `megatron corpus`. A tool's usage is the text of --help above its flags.
namespace megatron::cli {

int blacklist_urls(std::span<const std::string> words);
int clean_documents(std::span<const std::string> words);
int fix_documents(std::span<const std::string> words);
int find_duplicates(std::span<const std::string> words);
int group_duplicates(std::span<const std::string> words);
int remove_duplicates(std::span<const std::string> words);
int merge_json_files(std::span<const std::string> words);
int add_ids(std::span<const std::string> words);
int filter_ngrams(std::span<const std::string> words);
int annotate_toxicity(std::span<const std::string> words);
int keep_least_toxic(std::span<const std::string> words);
int measure_toxicity(std::span<const std::string> words);
int score_words(std::span<const std::string> words);

// --workers and --log-interval.
struct CorpusRunFlags {
  int64_t workers = 0;  // 0: all cores
  int64_t log_interval = 10000;
};
void add_run_flags(FlagTable& flags, CorpusRunFlags& run);
// Reports progress and bad lines on standard error. Throws ConfigError for values below 1.
corpus::RunOptions run_options(const CorpusRunFlags& run);

// Warns of bad lines, if there are any.
void warn_of_bad_lines(int64_t bad_lines);
// "wrote FILE: 10 of 12 lines", behind a warning of bad lines.
void report_lines(const corpus::LineCounts& counts, const std::filesystem::path& output);

}  // namespace megatron::cli

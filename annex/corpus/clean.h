#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "annex/corpus/lines.h"
#include "megatron/tokenizers/tokenizer.h"

// Tools that repair and drop documents: JSON lines with "text". A document takes no memory beyond
// its line.
namespace megatron::corpus {

struct CleanCounts {
  LineCounts lines;
  int64_t repaired = 0;  // documents that repaired() changed, also dropped ones
  int64_t not_english = 0;
  int64_t short_texts = 0;
};

// Repairs the texts, see repaired(). Drops documents that are not English, see is_english(), and
// those of less than 8 * 128 characters that have less than 128 tokens. Compat:
// tools/openwebtext/cleanup_dataset.py of Megatron-LM core_r0.5.0, which asks a language model for
// the language.
CleanCounts clean_documents(const std::filesystem::path& input, const std::filesystem::path& output,
                            const Tokenizer& tokenizer, const RunOptions& options);

// The tasks of fix_documents(), in the order in which they are tried.
enum class FixTask {
  kRemove512,            // drop texts of less than 512 characters
  kRemove256Javascript,  // drop texts of less than 256 characters with "javascript", in any case
  kRemove512NonEnglish,  // drop texts of less than 512 characters that are not English
  kFtfyFixText,          // repair: repaired()
  kGeneralCleaning,      // one blank for several, and for line ends behind words
};
// remove_512, remove_256_javascript, remove_512_non_english, ftfy_fix_text, general_cleaning.
// Throws ConfigError for other names.
FixTask fix_task_named(std::string_view name);

struct FixCounts {
  LineCounts lines;              // written: not dropped
  std::vector<int64_t> by_task;  // documents that a task dropped or changed, in the order above
};

// Applies the first task that applies to a document, and no other: the last two apply to all.
// Writes <folder>/<name>_cleaned<extension>, and the documents that were dropped to
// <folder>/<name>_filtered<extension>.
// Compat: tools/openwebtext/cleanup_fix_dataset.py.
FixCounts fix_documents(const std::filesystem::path& input, const std::filesystem::path& folder,
                        const std::vector<FixTask>& tasks, const RunOptions& options);

// kGeneralCleaning's result.
std::u32string with_single_blanks(std::u32string_view text);

}  // namespace megatron::corpus

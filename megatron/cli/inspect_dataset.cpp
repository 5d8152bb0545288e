#include "megatron/cli/inspect_dataset.h"

#include <fmt/format.h>

#include <vector>

#include "megatron/cli/command.h"
#include "megatron/core/error.h"
#include "megatron/core/log.h"
#include "megatron/data/dataset_tools.h"
#include "megatron/settings/flag_table.h"

namespace megatron::cli {
namespace {

// Prints text whose last line already ends.
void print_lines(std::string text) {
  if (!text.empty()) text.pop_back();
  print_line(text);
}

}  // namespace

int inspect_dataset(std::span<const std::string> words) {
  const std::vector<std::string> leading = take_leading_words(words);
  std::vector<std::string> prefixes;
  std::vector<int64_t> documents;
  int64_t max_tokens = 32;
  bool multimodal = false;
  FlagTable flags;
  flags.add("--dataset,--data-path", prefixes, "Prefixes of the datasets, as PREFIX.").none();
  flags.add("--documents", documents, "Numbers of documents to show as ids.").none();
  flags.add("--max-tokens", max_tokens, "Ids to show of each sequence.");
  flags.add_switch("--multimodal", multimodal, "The datasets hold a mode per sequence.");
  if (!parse_flags(flags, "megatron inspect-dataset PREFIX... [flags]", words)) return 0;
  prefixes.insert(prefixes.begin(), leading.begin(), leading.end());
  if (prefixes.empty()) {
    throw ConfigError("the dataset is missing; give a path without .bin and .idx");
  }
  for (const std::string& prefix : prefixes) {
    const IndexedDataset data(prefix, {.multimodal = multimodal});
    print_line(prefix);
    print_lines(summary_of(data));
    for (const int64_t document : documents) {
      print_line(fmt::format("document {}", document));
      print_lines(document_text(data, document, max_tokens));
    }
  }
  return 0;
}

}  // namespace megatron::cli

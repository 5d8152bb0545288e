#include "annex/corpus/commands/corpus.h"

#include <fmt/format.h>

#include <algorithm>

#include "annex/corpus/commands/corpus_tool.h"
#include "megatron/cli/command.h"
#include "megatron/core/error.h"
#include "megatron/core/log.h"

namespace megatron::cli {
namespace {

struct Tool {
  std::string_view name;
  std::string_view summary;
  RunAlone run;
};

// In the order in which a corpus is made; then those of detoxification.
constexpr Tool kTools[] = {
    {"blacklist-urls", "select the URLs that are worth downloading", blacklist_urls},
    {"merge", "join files of JSON lines", merge_json_files},
    {"clean", "repair texts, drop short and foreign ones", clean_documents},
    {"fix", "repair or drop documents by chosen rules", fix_documents},
    {"find-duplicates", "find documents that are nearly equal", find_duplicates},
    {"group-duplicates", "join pairs of duplicates to groups", group_duplicates},
    {"remove-duplicates", "keep one document of each group", remove_duplicates},
    {"add-id", "number the documents", add_ids},
    {"filter-ngrams", "cut out the texts of evaluation tasks", filter_ngrams},
    {"annotate-toxicity", "add a scorer's scores to texts", annotate_toxicity},
    {"keep-least-toxic", "keep the least toxic of annotated texts", keep_least_toxic},
    {"measure-toxicity", "measure continuations of prompts", measure_toxicity},
    {"score-words", "score texts by a list of words", score_words},
};

std::string overview() {
  size_t width = 0;
  for (const Tool& tool : kTools) width = std::max(width, tool.name.size());
  std::string text = "usage: megatron corpus <tool> [flags]\n\ntools:\n";
  for (const Tool& tool : kTools) {
    text += fmt::format("  {:<{}}  {}\n", tool.name, width, tool.summary);
  }
  return text + "\nmegatron corpus <tool> --help lists the flags of a tool.";
}

}  // namespace

int corpus(std::span<const std::string> words) {
  if (words.empty() || words[0] == "--help" || words[0] == "-h") {
    print_line(overview());
    return 0;
  }
  const auto* const tool = std::ranges::find(kTools, words[0], &Tool::name);
  if (tool != std::end(kTools)) return tool->run(words.subspan(1));
  throw ConfigError(
      fmt::format("corpus: {} is not a tool; megatron corpus --help lists the tools", words[0]));
}

}  // namespace megatron::cli

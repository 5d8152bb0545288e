#include "megatron/data/sentence_rules.h"

#include <fmt/format.h>

#include <charconv>
#include <cstdlib>
#include <system_error>

#include "megatron/core/error.h"
#include "megatron/core/file.h"

namespace megatron {
namespace {

// The parts of a text between separators, without an empty last part.
std::vector<std::string> parts_of(std::string_view text, char separator) {
  std::vector<std::string> parts;
  while (!text.empty()) {
    const size_t end = std::min(text.find(separator), text.size());
    parts.emplace_back(text.substr(0, end));
    text.remove_prefix(std::min(end + 1, text.size()));
  }
  return parts;
}

SentenceRules::Words read_words(const std::filesystem::path& path) {
  const std::vector<std::string> lines = parts_of(read_text(path), '\n');
  return {lines.begin(), lines.end()};
}

// The lines of two columns, separated by a tab.
std::vector<std::pair<std::string, std::string>> read_columns(const std::filesystem::path& path) {
  std::vector<std::pair<std::string, std::string>> rows;
  for (const std::string& line : parts_of(read_text(path), '\n')) {
    const size_t tab = line.find('\t');
    if (tab == std::string::npos) {
      throw FormatError(fmt::format("{}:{}: the line needs two columns with a tabulator between",
                                    path.string(), rows.size() + 1));
    }
    rows.emplace_back(line.substr(0, tab), line.substr(tab + 1));
  }
  return rows;
}

bool is_language_name(const std::string& name) {
  constexpr std::string_view kAllowed = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ-_";
  return !name.empty() && name.find_first_not_of(kAllowed) == std::string::npos;
}

}  // namespace

SentenceRules read_sentence_rules(const std::filesystem::path& directory) {
  SentenceRules rules;
  rules.abbreviations = read_words(directory / "abbrev_types.txt");
  rules.starters = read_words(directory / "sent_starters.txt");
  for (auto& pair : read_columns(directory / "collocations.tab")) {
    rules.pairs.insert(std::move(pair));
  }
  const std::filesystem::path path = directory / "ortho_context.tab";
  for (auto& [word, number] : read_columns(path)) {
    int seen = 0;
    const char* const end = number.data() + number.size();
    if (std::from_chars(number.data(), end, seen).ptr != end || number.empty()) {
      throw FormatError(fmt::format("{}: \"{}\" behind the word \"{}\" is not a whole number",
                                    path.string(), number, word));
    }
    rules.seen.emplace(std::move(word), seen);
  }
  return rules;
}

SentenceRules sentence_rules(const std::string& language,
                             const std::vector<std::filesystem::path>& folders) {
  if (!is_language_name(language)) {
    throw ConfigError(fmt::format(
        "--lang \"{}\" is not a language; give an English name such as english", language));
  }
  for (const std::filesystem::path& folder : folders) {
    const std::filesystem::path directory = folder / "tokenizers" / "punkt_tab" / language;
    std::error_code ignored;
    if (std::filesystem::is_directory(directory, ignored)) return read_sentence_rules(directory);
  }
  if (language == "english") return english_sentence_rules();
  throw ConfigError(fmt::format(
      "--lang {} has no built-in rules, english has; for other languages let NLTK_DATA name the "
      "folder that holds NLTK's tokenizers/punkt_tab/{}",
      language, language));
}

std::vector<std::filesystem::path> nltk_data_folders() {
  const char* const folders = std::getenv("NLTK_DATA");
  if (folders == nullptr) return {};
  const std::vector<std::string> parts = parts_of(folders, ':');
  return {parts.begin(), parts.end()};
}

}  // namespace megatron

#pragma once

#include <filesystem>
#include <map>
#include <set>
#include <string>
#include <string_view>
#include <vector>

namespace megatron {

// A SentenceSplitter's knowledge of a language, in the terms of Kiss and Strunk 2006, "Unsupervised
// Multilingual Sentence Boundary Detection", Computational Linguistics 32(4). All words are in
// lower case; every number is the word "##number##".
struct SentenceRules {
  using Words = std::set<std::string, std::less<>>;

  // Flags for observed uses of a word: at the beginning of sentences, in the middle, or at an
  // unknown position, with an upper or lower case first letter. The values are those in NLTK's
  // files.
  static constexpr int kMiddleUpper = 4;
  static constexpr int kAnyUpper = 2 | 4 | 8;
  static constexpr int kBeginLower = 16;
  static constexpr int kMiddleLower = 32;
  static constexpr int kAnyLower = 16 | 32 | 64;

  Words abbreviations;                                  // without the last full stop
  Words starters;                                       // words that often begin a sentence
  std::set<std::pair<std::string, std::string>> pairs;  // "no", "##number##": no border between
  std::map<std::string, int, std::less<>> seen;         // for each word, a sum of the values above
  bool letters_abbreviate = false;                      // "u.s" and "j.r" are abbreviations, too
};

// The built-in rules, which need no file. The only language is "english".
SentenceRules english_sentence_rules();

// Reads a directory of NLTK's punkt_tab: abbrev_types.txt, sent_starters.txt, collocations.tab,
// ortho_context.tab. Throws IoError and FormatError.
SentenceRules read_sentence_rules(const std::filesystem::path& directory);

// The rules of a language: from `<folder>/tokenizers/punkt_tab/<language>` in the first of
// `folders` that has it, else the built-in ones. Throws ConfigError for an unknown language.
SentenceRules sentence_rules(const std::string& language,
                             const std::vector<std::filesystem::path>& folders);

// The folders in the environment variable NLTK_DATA, separated by ':'.
std::vector<std::filesystem::path> nltk_data_folders();

}  // namespace megatron

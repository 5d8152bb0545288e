#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "annex/corpus/lines.h"
#include "annex/corpus/ngrams.h"

namespace megatron::corpus {

// JSON lines of an evaluation task. The member `field` is a text or a list of texts.
struct TaskFile {
  std::string name;
  std::filesystem::path file;
  std::string field;  // empty: field_of_task(name)
};

// The member with the texts of a task that Megatron-LM knows: "text" of lambada, "questions" of
// coqa, "goal" of piqa, "question" of squad, natural_questions, triviaqa, webqa, race and drop; of
// other tasks "text".
std::string field_of_task(std::string_view name);

// Names are the flags of tools/openwebtext/filter_ngrams.py without the dashes.
struct FilterNgramsConfig {
  std::vector<std::string> tasks = {};  // in split_id, in this order
  std::vector<TaskFile> task_files = {};
  std::filesystem::path dedup_dataset = {};
  std::string key = {};  // of the texts in dedup_dataset
  std::filesystem::path output = {};
  int64_t max_ngram_size = 13;         // words
  int64_t min_ngram_size = 8;          // words
  int64_t filter_text_char_len = 200;  // characters; pieces must be longer
  int64_t key_threshold = 10;          // occurrences; sequences with so many are no contamination
  int64_t splits_count = 10;           // pieces; a document that breaks into more is dropped
  int64_t remove_char_each_side = 200;
  std::filesystem::path save_dictionary = {};
  std::filesystem::path load_dictionary = {};  // instead of reading tasks and counting
};

// Everything wrong with a config, one sentence each; empty if it is valid.
std::vector<std::string> problems(const FilterNgramsConfig& config);

struct FilterNgramsCounts {
  int64_t ngrams = 0;    // of the tasks
  int64_t frequent = 0;  // of these, dropped by key_threshold
  int64_t bad_lines = 0;
  int64_t documents = 0;
  int64_t written = 0;         // pieces
  int64_t split = 0;           // documents in more than one piece
  int64_t ignored = 0;         // documents of which no piece is left
  int64_t over_threshold = 0;  // documents dropped by splits_count
  int64_t trimmed = 0;         // documents of which one piece is left, shorter than the document
};

// Removes the texts of evaluation tasks from a corpus (Brown et al. 2020, arXiv:2005.14165, app.
// C). A document is cut around each sequence of max_ngram_size words that a task also has, or that
// is a whole text of a task of at least min_ngram_size words:
//
//   left piece   up to the last . ! or ? at or before remove_char_each_side characters in front
//   right piece  behind the first of these marks at or after so many characters behind the end
//
// Pieces of at most filter_text_char_len characters vanish; right pieces are searched again. Each
// piece becomes a copy of the object with its text, and with split_id =
// "<old split_id>-<tasks>-<document, from 1>-<piece>". Documents without matches are one piece.
// Reads the corpus twice: the first time to count the sequences. Memory: see NgramDictionary.
//
// Compat: tools/openwebtext/filter_ngrams.py of Megatron-LM core_r0.5.0. As there, shorter
// sequences are only found where max_ngram_size words follow, or among the last words of a piece
// that has more than max_ngram_size; and the end of a match is its begin and the length of the
// words joined by single blanks. Differs: texts of tasks come from files, dictionaries are JSON
// lines.
FilterNgramsCounts filter_ngrams(const FilterNgramsConfig& config, const RunOptions& options);

// The pieces of one text; exposed for tests.
std::vector<std::u32string> pieces_without(const NgramDictionary& dictionary,
                                           const FilterNgramsConfig& config, std::u32string text);

}  // namespace megatron::corpus

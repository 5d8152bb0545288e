#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>
#include <vector>

#include "megatron/tokenizers/tokenizer.h"

namespace megatron {

// Turns loose JSON (one object per line) into datasets of token ids, one dataset per key:
// <output_prefix>_<key>_document.bin and .idx, with one sequence per document, or
// <output_prefix>_<key>_sentence with one sequence per sentence. Names are Megatron's flag names
// without the dashes.
struct PreprocessConfig {
  std::string input = {};  // a file, also of gzip or xz; a glob pattern if partitions > 1
  std::vector<std::string> json_keys = {"text"};
  bool split_sentences = false;
  bool keep_newlines = false;    // sentences keep the white space after them
  std::string lang = "english";  // of the sentences; see sentence_rules()
  bool append_eod = false;
  std::string output_prefix = {};
  std::string dataset_impl =
      "mmap";           // or cached, lazy: an index of the format TNTIDX, ids as int32
  int64_t workers = 1;  // threads; a multiple of partitions
  int64_t partitions = 1;
  bool keep_sequential_samples = false;
  int64_t log_interval = 1000;        // documents
  bool skip_bad_lines = false;        // report and count bad lines instead of stopping at the first
  bool skip_empty_documents = false;  // Megatron-DeepSpeed's rule; else keep them, without tokens
};

// Everything wrong with a config, one sentence each; empty if it is valid.
std::vector<std::string> problems(const PreprocessConfig& config);

struct PreprocessStats {
  int64_t documents = 0;        // good lines
  int64_t empty_documents = 0;  // without tokens, summed over the keys
  int64_t bad_lines = 0;
  int64_t tokens = 0;  // including ends of documents, summed over the keys
  int64_t input_bytes = 0;
  double seconds = 0;
};

// Callbacks, called in the order of the output by one thread at a time.
struct PreprocessEvents {
  // Called for each log_interval documents; several times in a row if many documents arrive at
  // once.
  std::function<void(const PreprocessStats&)> on_progress;
  // Gets "file:line: reason".
  std::function<void(const std::string&)> on_bad_line;
};

// The datasets have the documents in the order of the input. With partitions > 1 the lines of all
// input files are distributed round-robin over the partitions, and the output concatenates the
// partitions, unless keep_sequential_samples is set.
//
// Throws FormatError at the first bad line (unless skip_bad_lines), IoError, and ConfigError if
// config has problems; then no dataset appears.
//
// Compat: equal to the files of Megatron-LM core_r0.5.0's tools/preprocess_data.py, except that the
// files of single partitions and of sentences are not written, every key gets an .idx, and
// partition inputs are sorted.
PreprocessStats preprocess(const PreprocessConfig& config, const Tokenizer& tokenizer,
                           const PreprocessEvents& events = {});

// <output_prefix>_<key>_document, or _sentence.
std::string dataset_prefix(const PreprocessConfig& config, const std::string& key);

// The files that match `input` of a config with partitions > 1, sorted; throws ConfigError if none
// do.
std::vector<std::filesystem::path> files_of_pattern(const std::string& pattern);

}  // namespace megatron

#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "megatron/tokenizers/tokenizer.h"

// The data of the tasks that a BERT is fine-tuned on: MNLI and QQP of GLUE (tab-separated files),
// and RACE (folders of JSON lines). Formats and sequences are those of Megatron-LM core_r0.5.0.
namespace megatron {

enum class ClassificationTaskKind { kMnli, kQqp, kRace };

// "MNLI", "QQP", "RACE"; nothing for other names.
std::optional<ClassificationTaskKind> classification_task_of(std::string_view name);
std::string_view name_of(ClassificationTaskKind kind);

// Texts before tokenization: one pair for each sequence of a sample. A sample of RACE has four, one
// for each answer; its label is the right one.
struct ClassificationText {
  int64_t uid = 0;
  int64_t label = 0;
  std::vector<std::pair<std::string, std::string>> pairs;
};

// White space becomes single blanks, and " . " becomes ". ".
std::string clean_text(std::string_view text);

// The samples of a file, or of a folder of RACE in the order of the names of its files. A file
// without labels (test.tsv) gives the label 0. Throws IoError, and FormatError with file and line.
std::vector<ClassificationText> classification_texts(ClassificationTaskKind kind,
                                                     const std::filesystem::path& path);

// [CLS] A [SEP] B [SEP] [PAD] ..., cut at its end. Types are 1 for B and the [SEP] behind it.
struct PairIds {
  int64_t cls = 0;
  int64_t sep = 0;
  int64_t pad = 0;
};
struct EncodedPair {
  std::vector<int64_t> tokens;  // [seq_length]
  std::vector<int64_t> types;   // [seq_length]
  int64_t length = 0;           // without padding
};
EncodedPair encoded_pair(const std::vector<int32_t>& a, const std::vector<int32_t>& b,
                         int64_t seq_length, const PairIds& ids);

// Samples as the model reads them.
struct ClassificationSet {
  std::string name;             // "dev-matched", for log lines
  int64_t pairs_of_sample = 1;  // sequences: 4 for RACE
  int64_t seq_length = 0;
  std::vector<int64_t> uids;
  std::vector<int64_t> labels;
  std::vector<EncodedPair> pairs;  // of sample i from i * pairs_of_sample

  int64_t num_samples() const { return static_cast<int64_t>(labels.size()); }
};

// Classes of a task: the outputs of its head are compared with each other.
int64_t num_classes_of(ClassificationTaskKind kind);

// The samples of several paths, joined. Throws what classification_texts() throws, and ConfigError
// if the tokenizer has no [CLS], [SEP] or [PAD].
ClassificationSet read_classification_set(ClassificationTaskKind kind,
                                          const std::vector<std::string>& paths, int64_t seq_length,
                                          const Tokenizer& tokenizer);

}  // namespace megatron

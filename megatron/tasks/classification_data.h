#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
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
// [CLS] A [SEP] [PAD] ..., cut before its [SEP]; all types are 0.
EncodedPair encoded_text(const std::vector<int32_t>& a, int64_t seq_length, const PairIds& ids);
// Throws ConfigError if the tokenizer has not all of them.
PairIds pair_ids_of(const Tokenizer& tokenizer);

// What the outputs of a head are compared with.
enum class LabelKind {
  kClass,  // one of num_labels classes: cross-entropy
  kMarks,  // each output is right or wrong by itself: binary cross-entropy
  kValue,  // a number, for a head with one output: the squared error
};

// What a classifier learns.
struct ClassificationProblem {
  std::string name;             // "MNLI", for log lines
  std::string head;             // "classification_head": the module's name
  std::string logged;           // "lm loss": the loss's name in the log
  int64_t num_labels = 0;       // outputs for a sample
  int64_t pairs_of_sample = 1;  // sequences: 4 for RACE, each with an output of its own
  LabelKind labels = LabelKind::kClass;
};

ClassificationProblem problem_of(ClassificationTaskKind kind);

// Samples as the model reads them.
struct ClassificationSet {
  std::string name;  // "dev-matched", for log lines
  int64_t seq_length = 0;
  std::vector<int64_t> uids;
  std::vector<int64_t> labels;     // kClass: one a sample; kMarks: num_labels zeros and ones
  std::vector<float> values;       // kValue: one a sample
  std::vector<EncodedPair> pairs;  // of sample i from i * pairs_of_sample

  int64_t num_samples() const { return static_cast<int64_t>(uids.size()); }
};

// The samples of several paths, joined. Throws what classification_texts() throws, and ConfigError
// if the tokenizer has no [CLS], [SEP] or [PAD].
ClassificationSet read_classification_set(ClassificationTaskKind kind,
                                          const std::vector<std::string>& paths, int64_t seq_length,
                                          const Tokenizer& tokenizer);
// The samples of several sets that were read so; one set is not copied. REQUIRES: one at least.
std::shared_ptr<const ClassificationSet> joined(
    const std::vector<std::shared_ptr<const ClassificationSet>>& sets);

}  // namespace megatron

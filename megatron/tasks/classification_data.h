#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "megatron/models/bert/bert_heads.h"
#include "megatron/tokenizers/tokenizer.h"

// Data for fine-tuning a BERT: MNLI and QQP of GLUE (tab-separated files), and RACE (folders of
// JSON lines). Formats and sequences are those of Megatron-LM core_r0.5.0.
namespace megatron {

enum class ClassificationTaskKind { kMnli, kQqp, kRace };

// "MNLI", "QQP", "RACE"; nothing for other names.
std::optional<ClassificationTaskKind> classification_task_of(std::string_view name);
std::string_view name_of(ClassificationTaskKind kind);

// A sample before tokenization: a pair of texts for each sequence. A sample of RACE has four, one
// for each answer; its label is the index of the right one.
struct ClassificationText {
  int64_t uid = 0;
  int64_t label = 0;
  std::vector<std::pair<std::string, std::string>> pairs;
};

// Replaces white space by single blanks, and " . " by ". ".
std::string clean_text(std::string_view text);

// The samples of a file, or of a folder of RACE with its files in the order of their names. Samples
// of a file without labels (test.tsv) have label 0. Throws IoError, and FormatError with file and
// line.
std::vector<ClassificationText> classification_texts(ClassificationTaskKind kind,
                                                     const std::filesystem::path& path);

// [CLS] A [SEP] B [SEP] [PAD] ..., truncated at the end. Types are 1 for B and the [SEP] after it.
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
// [CLS] A [SEP] [PAD] ..., truncated before its [SEP]; all types are 0.
EncodedPair encoded_text(const std::vector<int32_t>& a, int64_t seq_length, const PairIds& ids);
// Throws ConfigError if the tokenizer lacks one of them.
PairIds pair_ids_of(const Tokenizer& tokenizer);

// A classification problem.
struct ClassificationProblem {
  std::string name;             // "MNLI", for log lines
  std::string head;             // "classification_head": the module's name
  std::string logged;           // "lm loss": the loss's name in the log
  int64_t num_labels = 0;       // outputs for a sample
  int64_t pairs_of_sample = 1;  // sequences per sample: 4 for RACE, each with its own output
  LabelKind labels = LabelKind::kClass;
};

ClassificationProblem problem_of(ClassificationTaskKind kind);

// Tokenized samples.
struct ClassificationSet {
  std::string name;  // "dev-matched", for log lines
  int64_t seq_length = 0;
  std::vector<int64_t> uids;
  std::vector<int64_t> labels;     // kClass: one a sample; kIndependent: num_labels zeros and ones
  std::vector<float> values;       // kValue: one a sample
  std::vector<EncodedPair> pairs;  // of sample i from i * pairs_of_sample

  int64_t num_samples() const { return static_cast<int64_t>(uids.size()); }
};

// The samples of several paths, joined. Throws what classification_texts() throws, and ConfigError
// if the tokenizer has no [CLS], [SEP] or [PAD].
ClassificationSet read_classification_set(ClassificationTaskKind kind,
                                          const std::vector<std::string>& paths, int64_t seq_length,
                                          const Tokenizer& tokenizer);
// Concatenates sets; does not copy a single one. REQUIRES: at least one.
std::shared_ptr<const ClassificationSet> joined(
    const std::vector<std::shared_ptr<const ClassificationSet>>& sets);

}  // namespace megatron

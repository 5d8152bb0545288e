#pragma once

#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <vector>

#include "megatron/tasks/classification_data.h"

// Labelled texts in .csv and .json files, as in transformers' example script for classification
// (run_glue).
namespace megatron {

// The columns of the files.
struct LabelledColumns {
  std::string text = "text";
  std::string pair;  // the second of two texts; empty: a sample has one
  std::string label = "label";
};

// The columns of the files: `text` and `pair` as given, or sentence1 and sentence2 if there is no
// column `text`. Throws ConfigError if both are missing; IoError, FormatError.
LabelledColumns labelled_columns(const std::filesystem::path& file, const LabelledColumns& given);

// A text with its label as written.
struct LabelledText {
  std::string text;
  std::string pair;
  std::string label;
  std::filesystem::path file;
  int64_t row = 0;  // line or entry, for messages
};

// The rows of the files. Throws IoError, ConfigError, FormatError.
std::vector<LabelledText> labelled_texts(std::span<const std::filesystem::path> files,
                                         const LabelledColumns& columns);

// The kind of targets: numbers if there is one output, independent labels if a label is a JSON
// list, else classes.
ClassificationProblem problem_of(std::span<const LabelledText> texts, int64_t num_labels);
// The names of the classes: empty if all labels are integers, that is, class indices; `known` if it
// contains all labels; else the sorted labels. Throws ConfigError unless there are num_labels.
std::vector<std::string> class_names_of(std::span<const LabelledText> texts, int64_t num_labels,
                                        const std::vector<std::string>& known);

// Tokenizes the samples. Throws FormatError, with file and row, for an invalid label; ConfigError
// if the tokenizer has no [CLS], [SEP] or [PAD].
ClassificationSet labelled_set(std::span<const LabelledText> texts,
                               const ClassificationProblem& problem,
                               const std::vector<std::string>& class_names, int64_t seq_length,
                               const Tokenizer& tokenizer);

}  // namespace megatron

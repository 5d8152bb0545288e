#include "megatron/tasks/labelled_texts.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <utility>

#include "megatron/core/error.h"
#include "megatron/core/json.h"
#include "megatron/core/listed.h"
#include "megatron/core/number_text.h"
#include "megatron/data/table_rows.h"

namespace megatron {
namespace {

namespace fs = std::filesystem;

constexpr const char* kFirstSentence = "sentence1";
constexpr const char* kSecondSentence = "sentence2";

FormatError wrong_label(const LabelledText& text, const std::string& rule) {
  return FormatError(fmt::format("{}: line or entry {}: the label {} {}", text.file.string(),
                                 text.row, text.label, rule));
}

int64_t class_of(const LabelledText& text, const std::vector<std::string>& names,
                 int64_t num_labels) {
  if (!names.empty()) {
    const auto found = std::ranges::find(names, text.label);
    if (found != names.end()) return found - names.begin();
    throw wrong_label(text, fmt::format("is none of the classes {}", listed(names)));
  }
  const std::optional<int64_t> number = integer_of(text.label);
  if (number && *number >= 0 && *number < num_labels) return *number;
  throw wrong_label(text, fmt::format("must be an integer from 0 to {}; --num_labels is {}",
                                      num_labels - 1, num_labels));
}

std::vector<int64_t> marks_of(const LabelledText& text, int64_t num_labels) {
  const nlohmann::json list = try_parse_json(text.label);
  std::vector<int64_t> marks;
  if (list.is_array()) {
    for (const auto& item : list) {
      const bool is_mark = item.is_number() && (item == 0 || item == 1);
      marks.push_back(is_mark ? item.get<int64_t>() : -1);
    }
  }
  if (std::ssize(marks) != num_labels || std::ranges::count(marks, -1) > 0) {
    throw wrong_label(text, fmt::format("must be a list of {} zeros and ones; --num_labels is {}",
                                        num_labels, num_labels));
  }
  return marks;
}

float value_of(const LabelledText& text) {
  const std::optional<double> value = number_of(text.label);
  if (value) return static_cast<float>(*value);
  throw wrong_label(text, "must be a number with --num_labels 1; for classes give their number");
}

// Truncates the longer of two texts until both fit. Compat: transformers' truncation
// "longest_first".
void fit(std::vector<int32_t>& a, std::vector<int32_t>& b, int64_t room) {
  while (std::ssize(a) + std::ssize(b) > std::max<int64_t>(room, 0)) {
    std::vector<int32_t>& longer = a.size() > b.size() ? a : b;
    longer.pop_back();
  }
}

EncodedPair encoded(const LabelledText& text, bool is_pair, int64_t seq_length,
                    const Tokenizer& tokenizer, const PairIds& ids) {
  constexpr int64_t kSpecialIds = 3;  // of a pair
  std::vector<int32_t> a = tokenizer.encode(text.text);
  if (!is_pair) return encoded_text(a, seq_length, ids);
  std::vector<int32_t> b = tokenizer.encode(text.pair);
  fit(a, b, seq_length - kSpecialIds);
  return encoded_pair(a, b, seq_length, ids);
}

}  // namespace

LabelledColumns labelled_columns(const fs::path& file, const LabelledColumns& given) {
  LabelledColumns columns = given;
  if (has_column(file, given.text)) return columns;
  if (!has_column(file, kFirstSentence)) {
    throw ConfigError(fmt::format(
        "{}: has neither a column {} nor {}; name the column of the texts with --text_column",
        file.string(), given.text, kFirstSentence));
  }
  columns.text = kFirstSentence;
  if (columns.pair.empty() && has_column(file, kSecondSentence)) columns.pair = kSecondSentence;
  return columns;
}

std::vector<LabelledText> labelled_texts(std::span<const fs::path> files,
                                         const LabelledColumns& columns) {
  std::vector<std::string> names = {columns.label, columns.text};
  if (!columns.pair.empty()) names.push_back(columns.pair);
  std::vector<LabelledText> texts;
  for (const fs::path& file : files) {
    read_table(file, names, [&](const TableRow& row) {
      texts.push_back({.text = row.fields[1],
                       .pair = names.size() > 2 ? row.fields[2] : std::string(),
                       .label = row.fields[0],
                       .file = file,
                       .row = row.number});
    });
  }
  return texts;
}

ClassificationProblem problem_of(std::span<const LabelledText> texts, int64_t num_labels) {
  const bool are_lists = std::ranges::any_of(
      texts, [](const LabelledText& text) { return text.label.starts_with('['); });
  return {.name = "BERT",
          .head = "classification_head",
          .logged = "loss",
          .num_labels = num_labels,
          .labels = are_lists         ? LabelKind::kIndependent
                    : num_labels == 1 ? LabelKind::kValue
                                      : LabelKind::kClass};
}

std::vector<std::string> class_names_of(std::span<const LabelledText> texts, int64_t num_labels,
                                        const std::vector<std::string>& known) {
  std::set<std::string> names;
  bool are_numbers = true;
  for (const LabelledText& text : texts) {
    are_numbers = are_numbers && integer_of(text.label).has_value();
    names.insert(text.label);
  }
  if (are_numbers) return {};
  const bool are_known = std::ranges::all_of(names, [&](const std::string& name) {
    return std::ranges::find(known, name) != known.end();
  });
  if (are_known && std::ssize(known) == num_labels) return known;
  std::vector<std::string> sorted(names.begin(), names.end());
  if (std::ssize(sorted) != num_labels) {
    throw ConfigError(
        fmt::format("--num_labels {}: the training texts have {} labels, {}; give "
                    "that number",
                    num_labels, sorted.size(), listed(sorted)));
  }
  return sorted;
}

ClassificationSet labelled_set(std::span<const LabelledText> texts,
                               const ClassificationProblem& problem,
                               const std::vector<std::string>& class_names, int64_t seq_length,
                               const Tokenizer& tokenizer) {
  const PairIds ids = pair_ids_of(tokenizer);
  const bool is_pair =
      std::ranges::any_of(texts, [](const LabelledText& text) { return !text.pair.empty(); });
  ClassificationSet set;
  set.seq_length = seq_length;
  for (const LabelledText& text : texts) {
    set.uids.push_back(text.row);
    switch (problem.labels) {
      case LabelKind::kClass:
        set.labels.push_back(class_of(text, class_names, problem.num_labels));
        break;
      case LabelKind::kIndependent:
        for (const int64_t mark : marks_of(text, problem.num_labels)) set.labels.push_back(mark);
        break;
      case LabelKind::kValue:
        set.values.push_back(value_of(text));
        break;
    }
    set.pairs.push_back(encoded(text, is_pair, seq_length, tokenizer, ids));
  }
  return set;
}

}  // namespace megatron

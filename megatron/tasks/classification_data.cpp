#include "megatron/tasks/classification_data.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <map>
#include <nlohmann/json.hpp>
#include <utility>

#include "megatron/core/error.h"
#include "megatron/core/file.h"
#include "megatron/core/json.h"
#include "megatron/core/log.h"
#include "megatron/core/number_text.h"
#include "megatron/tokenizers/unicode_text.h"

namespace megatron {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

constexpr std::array<std::pair<std::string_view, ClassificationTaskKind>, 3> kTasks = {
    {{"MNLI", ClassificationTaskKind::kMnli},
     {"QQP", ClassificationTaskKind::kQqp},
     {"RACE", ClassificationTaskKind::kRace}}};
constexpr size_t kAnswers = 4;              // of a question of RACE
constexpr size_t kMaxQuestionTokens = 128;  // with its answer

FormatError error_at(const fs::path& path, size_t line, const std::string& what) {
  return FormatError(fmt::format("{} line {}: {}", path.string(), line, what));
}

// The text between white space at its ends.
std::string trimmed(std::string_view text) {
  constexpr std::string_view kBlanks = " \t\n\r\f\v";
  const size_t begin = text.find_first_not_of(kBlanks);
  if (begin == std::string_view::npos) return "";
  return std::string(text.substr(begin, text.find_last_not_of(kBlanks) - begin + 1));
}

// Compat: Megatron-LM core_r0.5.0 strips a line before it splits at tabs, so empty fields at its
// ends are lost.
std::vector<std::string> fields_of(std::string_view line) {
  const std::string text = trimmed(line);
  std::vector<std::string> fields;
  for (size_t begin = 0; begin <= text.size();) {
    const size_t end = std::min(text.find('\t', begin), text.size());
    fields.push_back(trimmed(std::string_view(text).substr(begin, end - begin)));
    begin = end + 1;
  }
  return fields;
}

std::vector<std::string> lines_of(const fs::path& path) {
  const std::string text = read_text(path);
  std::vector<std::string> lines;
  for (size_t begin = 0; begin < text.size();) {
    const size_t end = std::min(text.find('\n', begin), text.size());
    lines.push_back(text.substr(begin, end - begin));
    begin = end + 1;
  }
  return lines;
}

int64_t uid_of(const std::string& field, const fs::path& path, size_t line) {
  const std::optional<int64_t> uid = integer_of(field);
  if (uid && *uid >= 0) return *uid;
  throw error_at(path, line, fmt::format("the id {} must be an integer, at least 0", field));
}

std::vector<ClassificationText> mnli_texts(const fs::path& path) {
  static const std::map<std::string, int64_t> kLabels = {
      {"contradiction", 0}, {"entailment", 1}, {"neutral", 2}};
  constexpr size_t kTestFields = 10;
  const std::vector<std::string> lines = lines_of(path);
  const bool is_test = !lines.empty() && fields_of(lines[0]).size() == kTestFields;
  std::vector<ClassificationText> texts;
  for (size_t i = 1; i < lines.size(); ++i) {
    const std::vector<std::string> fields = fields_of(lines[i]);
    if (fields.size() < kTestFields) {
      throw error_at(
          path, i + 1,
          fmt::format("has {} fields, and MNLI has at least {}", fields.size(), kTestFields));
    }
    ClassificationText text = {.uid = uid_of(fields[0], path, i + 1),
                               .pairs = {{clean_text(fields[8]), clean_text(fields[9])}}};
    if (text.pairs[0].first.empty() || text.pairs[0].second.empty()) {
      throw error_at(path, i + 1, "has an empty sentence");
    }
    if (!is_test) {
      const auto label = kLabels.find(fields.back());
      if (label == kLabels.end()) {
        throw error_at(path, i + 1,
                       fmt::format("the label {} must be contradiction, entailment or neutral",
                                   fields.back()));
      }
      text.label = label->second;
    }
    texts.push_back(std::move(text));
  }
  return texts;
}

std::vector<ClassificationText> qqp_texts(const fs::path& path) {
  constexpr size_t kTestFields = 3;
  constexpr size_t kTrainFields = 6;
  const std::vector<std::string> lines = lines_of(path);
  const bool is_test = !lines.empty() && fields_of(lines[0]).size() == kTestFields;
  std::vector<ClassificationText> texts;
  int64_t num_skipped = 0;
  for (size_t i = 1; i < lines.size(); ++i) {
    const std::vector<std::string> fields = fields_of(lines[i]);
    if (fields.size() != (is_test ? kTestFields : kTrainFields)) {
      num_skipped += 1;
      continue;
    }
    const size_t first = is_test ? 1 : 3;
    ClassificationText text = {
        .uid = uid_of(fields[0], path, i + 1),
        .pairs = {{clean_text(fields[first]), clean_text(fields[first + 1])}}};
    if (text.pairs[0].first.empty() || text.pairs[0].second.empty()) {
      num_skipped += 1;
      continue;
    }
    if (!is_test) {
      if (fields[5] != "0" && fields[5] != "1") {
        throw error_at(path, i + 1, fmt::format("the label {} must be 0 or 1", fields[5]));
      }
      text.label = fields[5] == "1" ? 1 : 0;
    }
    texts.push_back(std::move(text));
  }
  if (num_skipped > 0) {
    warn(
        fmt::format("{}: {} lines have another number of fields than {}, or an empty question; "
                    "they are skipped",
                    path.string(), num_skipped, is_test ? kTestFields : kTrainFields));
  }
  return texts;
}

std::string question_with(const std::string& question, const std::string& answer) {
  if (question.find('_') == std::string::npos) return question + " " + answer;
  std::string text;
  for (const char c : question) {
    if (c == '_') {
      text += answer;
    } else {
      text += c;
    }
  }
  return text;
}

// The questions of an article.
void add_race_texts(const json& object, std::vector<ClassificationText>& texts) {
  const std::string article = clean_text(object.at("article").get<std::string>());
  const json& questions = object.at("questions");
  const json& options = object.at("options");
  const json& answers = object.at("answers");
  if (options.size() != questions.size() || answers.size() != questions.size()) {
    throw FormatError(fmt::format("has {} questions, {} options and {} answers", questions.size(),
                                  options.size(), answers.size()));
  }
  for (size_t q = 0; q < questions.size(); ++q) {
    const std::string letter = answers[q].get<std::string>();
    if (letter.size() != 1 || letter[0] < 'A' || letter[0] > 'D') {
      throw FormatError(fmt::format("the answer {} must be one of A, B, C and D", letter));
    }
    if (options[q].size() != kAnswers) {
      throw FormatError(fmt::format("question {} has {} answers to choose from, not {}", q + 1,
                                    options[q].size(), kAnswers));
    }
    ClassificationText text = {
        .uid = static_cast<int64_t>(texts.size()), .label = letter[0] - 'A', .pairs = {}};
    for (const json& answer : options[q]) {
      text.pairs.emplace_back(
          clean_text(question_with(questions[q].get<std::string>(), answer.get<std::string>())),
          article);
    }
    texts.push_back(std::move(text));
  }
}

// Compat: Megatron-LM core_r0.5.0 reads the files of a folder in no defined order.
std::vector<ClassificationText> race_texts(const fs::path& folder) {
  std::vector<fs::path> files;
  std::error_code error;
  for (const auto& entry : fs::directory_iterator(folder, error)) {
    if (entry.path().extension() == ".txt") files.push_back(entry.path());
  }
  if (error || files.empty()) {
    throw IoError(fmt::format("{}: has no files *.txt; give a folder of RACE, such as train/middle",
                              folder.string()));
  }
  std::sort(files.begin(), files.end());
  std::vector<ClassificationText> texts;
  for (const fs::path& file : files) {
    const std::vector<std::string> lines = lines_of(file);
    for (size_t i = 0; i < lines.size(); ++i) {
      if (trimmed(lines[i]).empty()) continue;
      try {
        add_race_texts(parse_json(lines[i], kJsonLine, "its question"), texts);
      } catch (const std::exception& problem) {  // of the JSON, or its contents
        throw error_at(file, i + 1, problem.what());
      }
    }
  }
  return texts;
}

// The part of the path after the name of the task, as Megatron-LM core_r0.5.0 prints it:
// "dev-matched", "train-middle". (It also takes the letters t, s and v from the ends: dev.tsv is
// "de" there.)
std::string set_name_of(ClassificationTaskKind kind, const std::string& path) {
  const std::string_view task = name_of(kind);
  const size_t at = path.rfind(task);
  std::string_view name(path);
  if (at != std::string::npos) name.remove_prefix(at + task.size());
  const bool is_race = kind == ClassificationTaskKind::kRace;
  constexpr std::string_view kEnd = ".tsv";
  if (!is_race && name.ends_with(kEnd)) name.remove_suffix(kEnd.size());
  while (name.starts_with('/')) name.remove_prefix(1);
  while (name.ends_with('/')) name.remove_suffix(1);
  std::string text(name);
  std::replace(text.begin(), text.end(), is_race ? '/' : '_', '-');
  return text;
}

}  // namespace

std::optional<ClassificationTaskKind> classification_task_of(std::string_view name) {
  for (const auto& [known, kind] : kTasks) {
    if (known == name) return kind;
  }
  return std::nullopt;
}

std::string_view name_of(ClassificationTaskKind kind) {
  for (const auto& [name, known] : kTasks) {
    if (known == kind) return name;
  }
  throw InternalError("name_of: unknown classification task");
}

ClassificationProblem problem_of(ClassificationTaskKind kind) {
  constexpr int64_t kMnliClasses = 3;
  constexpr int64_t kQqpClasses = 2;
  ClassificationProblem problem = {
      .name = std::string(name_of(kind)), .head = "classification_head", .logged = "lm loss"};
  switch (kind) {
    case ClassificationTaskKind::kMnli:
      problem.num_labels = kMnliClasses;
      return problem;
    case ClassificationTaskKind::kQqp:
      problem.num_labels = kQqpClasses;
      return problem;
    case ClassificationTaskKind::kRace:
      problem.head = "multichoice_head";
      problem.num_labels = kAnswers;
      problem.pairs_of_sample = kAnswers;
      return problem;
  }
  throw InternalError("problem_of: unknown classification task");
}

std::string clean_text(std::string_view text) {
  std::u32string clean;
  for (const char32_t point : code_points(text)) {
    const bool is_blank = is_white_space(point);
    if (is_blank && !clean.empty() && clean.back() == U' ') continue;
    clean += is_blank ? U' ' : point;
  }
  constexpr std::u32string_view kStop = U" . ";
  for (int pass = 0; pass < 3; ++pass) {  // as often as Megatron-LM: stops may follow each other
    for (size_t at = clean.find(kStop); at != std::u32string::npos;
         at = clean.find(kStop, at + 2)) {
      clean.erase(at, 1);
    }
  }
  return to_utf8(clean);
}

std::vector<ClassificationText> classification_texts(ClassificationTaskKind kind,
                                                     const fs::path& path) {
  switch (kind) {
    case ClassificationTaskKind::kMnli:
      return mnli_texts(path);
    case ClassificationTaskKind::kQqp:
      return qqp_texts(path);
    case ClassificationTaskKind::kRace:
      return race_texts(path);
  }
  throw InternalError("classification_texts: unknown task");
}

PairIds pair_ids_of(const Tokenizer& tokenizer) {
  return {.cls = tokenizer.required_id(SpecialToken::kCls),
          .sep = tokenizer.required_id(SpecialToken::kSep),
          .pad = tokenizer.required_id(SpecialToken::kPad)};
}

namespace {

// Truncates a sequence to make room for a last [SEP], appends it, and pads.
void finish(EncodedPair& pair, int64_t sep_type, int64_t seq_length, const PairIds& ids) {
  const auto room = static_cast<size_t>(seq_length) - 1;
  if (pair.tokens.size() > room) {
    pair.tokens.resize(room);
    pair.types.resize(room);
  }
  pair.tokens.push_back(ids.sep);
  pair.types.push_back(sep_type);
  pair.length = std::ssize(pair.tokens);
  pair.tokens.resize(static_cast<size_t>(seq_length), ids.pad);
  // Compat: Megatron-LM core_r0.5.0 pads the types with the id of [PAD], which is 0 for BERT; the
  // model has two types.
  pair.types.resize(static_cast<size_t>(seq_length), 0);
}

void add_ids(EncodedPair& pair, const std::vector<int32_t>& ids, int64_t type) {
  pair.tokens.insert(pair.tokens.end(), ids.begin(), ids.end());
  pair.types.insert(pair.types.end(), ids.size(), type);
}

}  // namespace

EncodedPair encoded_pair(const std::vector<int32_t>& a, const std::vector<int32_t>& b,
                         int64_t seq_length, const PairIds& ids) {
  EncodedPair pair = {.tokens = {ids.cls}, .types = {0}};
  add_ids(pair, a, 0);
  pair.tokens.push_back(ids.sep);
  pair.types.push_back(0);
  add_ids(pair, b, 1);
  finish(pair, 1, seq_length, ids);
  return pair;
}

EncodedPair encoded_text(const std::vector<int32_t>& a, int64_t seq_length, const PairIds& ids) {
  EncodedPair text = {.tokens = {ids.cls}, .types = {0}};
  add_ids(text, a, 0);
  finish(text, 0, seq_length, ids);
  return text;
}

ClassificationSet read_classification_set(ClassificationTaskKind kind,
                                          const std::vector<std::string>& paths, int64_t seq_length,
                                          const Tokenizer& tokenizer) {
  const PairIds ids = pair_ids_of(tokenizer);
  const bool is_race = kind == ClassificationTaskKind::kRace;
  ClassificationSet set;
  if (!paths.empty()) set.name = set_name_of(kind, paths.front());
  set.seq_length = seq_length;
  std::string last_text;  // an article belongs to many pairs
  std::vector<int32_t> last_ids;
  for (const std::string& path : paths) {
    for (const ClassificationText& text : classification_texts(kind, path)) {
      set.uids.push_back(text.uid);
      set.labels.push_back(text.label);
      for (const auto& [first, second] : text.pairs) {
        std::vector<int32_t> a = tokenizer.encode(first);
        if (is_race && a.size() > kMaxQuestionTokens) a.resize(kMaxQuestionTokens);
        if (second != last_text || last_ids.empty()) {
          last_text = second;
          last_ids = tokenizer.encode(second);
        }
        set.pairs.push_back(encoded_pair(a, last_ids, seq_length, ids));
      }
    }
  }
  return set;
}

std::shared_ptr<const ClassificationSet> joined(
    const std::vector<std::shared_ptr<const ClassificationSet>>& sets) {
  if (sets.size() == 1) return sets.front();
  auto all = std::make_shared<ClassificationSet>(*sets.front());
  for (size_t i = 1; i < sets.size(); ++i) {
    const ClassificationSet& more = *sets[i];
    all->uids.insert(all->uids.end(), more.uids.begin(), more.uids.end());
    all->labels.insert(all->labels.end(), more.labels.begin(), more.labels.end());
    all->values.insert(all->values.end(), more.values.begin(), more.values.end());
    all->pairs.insert(all->pairs.end(), more.pairs.begin(), more.pairs.end());
  }
  return all;
}

}  // namespace megatron

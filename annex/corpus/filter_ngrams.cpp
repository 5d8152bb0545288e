#include "annex/corpus/filter_ngrams.h"

#include <fmt/format.h>

#include <algorithm>
#include <deque>
#include <nlohmann/json.hpp>
#include <utility>

#include "annex/corpus/json_object.h"
#include "megatron/core/error.h"
#include "megatron/core/json.h"
#include "megatron/tokenizers/unicode_text.h"

namespace megatron::corpus {
namespace {

struct Place {
  int64_t first = 0;  // word
  int64_t size = 0;   // words
};

// The first sequence of the dictionary in the order of the search.
std::optional<Place> first_match(const NgramDictionary& dictionary, const Words& words,
                                 int64_t max_size) {
  const NgramDictionary::Finder finder(dictionary, words);
  const int64_t last = words.count() - max_size;
  for (int64_t i = 0; i <= last; ++i) {
    if (finder.has(i, max_size)) return Place{i, max_size};
    for (const int64_t size : dictionary.sizes()) {
      if (size < max_size && finder.has(i, size)) return Place{i, size};
    }
  }
  if (last <= 0) return std::nullopt;
  for (const int64_t size : dictionary.sizes()) {
    for (int64_t i = last; size < max_size && i + size <= words.count(); ++i) {
      if (finder.has(i, size)) return Place{i, size};
    }
  }
  return std::nullopt;
}

bool ends_sentence(char32_t c) { return c == U'.' || c == U'!' || c == U'?'; }

struct Pieces {
  std::u32string left;
  std::u32string right;
};

// Cuts a text around the characters [begin, end).
Pieces cut(const std::u32string& text, int64_t begin, int64_t end, int64_t margin) {
  const auto size = std::ssize(text);
  const auto at = [&](int64_t i) { return text[static_cast<size_t>(i)]; };
  Pieces pieces;
  int64_t left = begin - margin;
  while (left > 0 && !ends_sentence(at(left))) --left;
  if (left > 0) pieces.left = text.substr(0, static_cast<size_t>(left) + 1);
  int64_t right = end + margin;
  while (right < size && !ends_sentence(at(right))) ++right;
  if (right + 1 < size) pieces.right = text.substr(static_cast<size_t>(right) + 1);
  return pieces;
}

// The sequences of the dictionary in a text; the search goes on behind each.
std::vector<std::string> matches_in(const NgramDictionary& dictionary, int64_t max_size,
                                    std::u32string text) {
  std::vector<std::string> found;
  while (true) {
    const Words words = words_of(text);
    const std::optional<Place> place = first_match(dictionary, words, max_size);
    if (!place) return found;
    found.push_back(words.joined(place->first, place->size));
    const auto end = static_cast<size_t>(words.begins[static_cast<size_t>(place->first)] +
                                         words.joined_length(place->first, place->size) + 1);
    text.erase(0, std::min(end, text.size()));
  }
}

// The text of a document, or the problem of its line.
struct FilteredDocument {
  JsonObject object;
  std::u32string text;
  std::optional<std::string> problem;
};

FilteredDocument document_of(const Line& line, const std::string& key) {
  FilteredDocument document;
  document.problem = document.object.parse(line.text);
  if (document.problem) return document;
  if (const std::string* const text = document.object.text(key)) {
    document.text = code_points(*text);
  } else {
    document.problem = fmt::format("the object has no text \"{}\"", key);
  }
  return document;
}

void add_task(const TaskFile& task, const FilterNgramsConfig& config, NgramDictionary& dictionary) {
  const std::string field = task.field.empty() ? field_of_task(task.name) : task.field;
  using Json = nlohmann::json;
  const auto parser = [] {
    return [](const Line& line) { return try_parse_json(line.text, kJsonLine); };
  };
  each_line<Json>({&task.file, 1}, {}, parser, [&](const Line& line, Json& object) {
    // A text that is not read would stay in the corpus, so a bad line ends the command.
    const auto refuse = [&] {
      throw FormatError(about(
          line, fmt::format("expected a JSON object whose \"{}\" is a text or a list of texts; "
                            "name another member with --task-file {}=FILE:MEMBER",
                            field, task.name)));
    };
    if (!object.is_object() || !object.contains(field)) refuse();
    const Json texts = object[field].is_array() ? object[field] : Json::array({object[field]});
    for (const Json& text : texts) {
      if (!text.is_string()) refuse();
      dictionary.add_text(text.get<std::string>(), config.min_ngram_size, config.max_ngram_size);
    }
  });
}

void count_matches(const FilterNgramsConfig& config, const RunOptions& options,
                   NgramDictionary& dictionary) {
  using Found = std::vector<std::string>;
  // Counts change while other threads search; these read the keys only, which stay.
  const auto make_work = [&] {
    return [&](const Line& line) {
      FilteredDocument document = document_of(line, config.key);
      if (document.problem) return Found{};
      return matches_in(dictionary, config.max_ngram_size, std::move(document.text));
    };
  };
  each_line<Found>({&config.dedup_dataset, 1}, options, make_work, [&](const Line&, Found& found) {
    for (const std::string& sequence : found) dictionary.count(sequence);
  });
}

struct CleanDocument {
  JsonObject object;
  std::vector<std::u32string> pieces;
  bool is_trimmed = false;
  std::optional<std::string> problem;
};

CleanDocument cleaned(const Line& line, const FilterNgramsConfig& config,
                      const NgramDictionary& dictionary) {
  FilteredDocument document = document_of(line, config.key);
  CleanDocument clean;
  clean.problem = document.problem;
  if (clean.problem) return clean;
  const size_t length = document.text.size();
  clean.object = std::move(document.object);
  clean.pieces = pieces_without(dictionary, config, std::move(document.text));
  clean.is_trimmed = clean.pieces.size() == 1 && clean.pieces[0].size() < length;
  return clean;
}

class PieceWriter {
 public:
  PieceWriter(const FilterNgramsConfig& config, FilterNgramsCounts& counts)
      : config_(config), counts_(counts), writer_(config.output) {
    for (const std::string& task : config.tasks) tasks_ += task + "-";
  }

  void write(CleanDocument& document) {
    ++counts_.documents;
    const auto num_pieces = std::ssize(document.pieces);
    if (num_pieces > 1) ++counts_.split;
    if (num_pieces == 0) ++counts_.ignored;
    if (document.is_trimmed) ++counts_.trimmed;
    if (num_pieces > config_.splits_count) {
      ++counts_.over_threshold;
      return;
    }
    const std::string* const old = document.object.text("split_id");
    const std::string prefix = (old == nullptr ? "" : *old + "-") + tasks_;
    for (int64_t i = 0; i < num_pieces; ++i) {
      document.object.set_text(config_.key, to_utf8(document.pieces[static_cast<size_t>(i)]));
      document.object.set_text("split_id",
                               fmt::format("{}{:010}-{:04}", prefix, counts_.documents, i));
      writer_.write(document.object.line());
      writer_.write("\n");
      ++counts_.written;
    }
  }

  void commit() { writer_.commit(); }

 private:
  const FilterNgramsConfig& config_;
  FilterNgramsCounts& counts_;
  FileWriter writer_;
  std::string tasks_;
};

NgramDictionary dictionary_of(const FilterNgramsConfig& config, const RunOptions& options,
                              FilterNgramsCounts& counts) {
  NgramDictionary dictionary;
  if (!config.load_dictionary.empty()) {
    dictionary.load(config.load_dictionary);
    counts.ngrams = dictionary.size();
    return dictionary;
  }
  for (const TaskFile& task : config.task_files) add_task(task, config, dictionary);
  counts.ngrams = dictionary.size();
  RunOptions quiet = options;  // the second pass reports bad lines
  quiet.on_bad_line = nullptr;
  count_matches(config, quiet, dictionary);
  counts.frequent = dictionary.drop_frequent(config.key_threshold);
  if (!config.save_dictionary.empty()) dictionary.save(config.save_dictionary);
  return dictionary;
}

}  // namespace

std::string field_of_task(std::string_view name) {
  if (name == "coqa") return "questions";
  if (name == "piqa") return "goal";
  for (const char* const known :
       {"squad", "natural_questions", "triviaqa", "webqa", "race", "drop"}) {
    if (name == known) return "question";
  }
  return "text";
}

std::vector<std::string> problems(const FilterNgramsConfig& config) {
  std::vector<std::string> found;
  if (config.tasks.empty()) found.emplace_back("--tasks is missing; name the evaluation tasks");
  for (const std::string& task : config.tasks) {
    const bool has_file = std::ranges::count(config.task_files, task, &TaskFile::name) > 0;
    if (has_file || !config.load_dictionary.empty()) continue;
    found.push_back(
        fmt::format("--tasks {0}: there is no file; give {1}", task,
                    task == "lambada" ? "--lambada-path FILE" : "--task-file " + task + "=FILE"));
  }
  for (const TaskFile& file : config.task_files) {
    if (std::ranges::count(config.tasks, file.name) > 0) continue;
    found.push_back(fmt::format("{} is the file of {}, which --tasks does not name; add it",
                                file.file.string(), file.name));
  }
  if (config.dedup_dataset.empty() || config.key.empty()) {
    found.emplace_back(
        "--dedup-dataset is missing; give a file of JSON lines and the key of its "
        "texts");
  }
  if (config.output.empty()) found.emplace_back("--output is missing; give the file to write");
  if (config.min_ngram_size < 1 || config.max_ngram_size < config.min_ngram_size) {
    found.push_back(fmt::format("--min-ngram-size {} must be in [1, --max-ngram-size {}]",
                                config.min_ngram_size, config.max_ngram_size));
  }
  for (const auto& [flag, value] :
       {std::pair{"--filter-text-char-len", config.filter_text_char_len},
        std::pair{"--key-threshold", config.key_threshold},
        std::pair{"--splits-count", config.splits_count},
        std::pair{"--remove-char-each-side", config.remove_char_each_side}}) {
    if (value < 0) found.push_back(fmt::format("{} {} must not be negative", flag, value));
  }
  return found;
}

std::vector<std::u32string> pieces_without(const NgramDictionary& dictionary,
                                           const FilterNgramsConfig& config, std::u32string text) {
  std::vector<std::u32string> free;
  while (true) {
    const Words words = words_of(text);
    const std::optional<Place> place = first_match(dictionary, words, config.max_ngram_size);
    if (!place) {
      free.push_back(std::move(text));
      return free;
    }
    const int64_t begin = words.begins[static_cast<size_t>(place->first)];
    const int64_t end = begin + words.joined_length(place->first, place->size);
    Pieces pieces = cut(text, begin, end, config.remove_char_each_side);
    if (std::ssize(pieces.left) > config.filter_text_char_len) {
      free.push_back(std::move(pieces.left));
    }
    if (std::ssize(pieces.right) <= config.filter_text_char_len) return free;
    text = std::move(pieces.right);
  }
}

FilterNgramsCounts filter_ngrams(const FilterNgramsConfig& config, const RunOptions& options) {
  const std::vector<std::string> wrong = problems(config);
  if (!wrong.empty()) throw ConfigError(wrong);
  std::vector<std::filesystem::path> inputs = {config.dedup_dataset};
  for (const TaskFile& task : config.task_files) inputs.push_back(task.file);
  if (!config.load_dictionary.empty()) inputs.push_back(config.load_dictionary);
  std::vector<std::filesystem::path> outputs = {config.output};
  if (!config.save_dictionary.empty()) outputs.push_back(config.save_dictionary);
  expect_other_files(inputs, outputs);

  FilterNgramsCounts counts;
  const NgramDictionary dictionary = dictionary_of(config, options, counts);
  PieceWriter writer(config, counts);
  const auto make_work = [&] {
    return [&](const Line& line) { return cleaned(line, config, dictionary); };
  };
  each_line<CleanDocument>({&config.dedup_dataset, 1}, options, make_work,
                           [&](const Line& line, CleanDocument& document) {
                             if (document.problem) {
                               report_bad(options, line, *document.problem);
                               ++counts.bad_lines;
                             } else {
                               writer.write(document);
                             }
                           });
  writer.commit();
  return counts;
}

}  // namespace megatron::corpus

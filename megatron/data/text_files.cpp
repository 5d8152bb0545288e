#include "megatron/data/text_files.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>

#include "megatron/core/error.h"
#include "megatron/core/json.h"
#include "megatron/data/csv_reader.h"
#include "megatron/data/json_line.h"
#include "megatron/data/line_reader.h"
#include "megatron/data/parquet/parquet_file.h"

namespace megatron {
namespace {

namespace fs = std::filesystem;

enum class Kind { kLines, kCsv, kJson, kParquet };

// The format by file name, without a final .gz or .xz; nothing for other files.
std::optional<Kind> kind_of(fs::path file) {
  if (file.extension() == ".gz" || file.extension() == ".xz") file.replace_extension();
  const std::string extension = file.extension();
  if (extension == ".txt" || extension == ".text") return Kind::kLines;
  if (extension == ".csv") return Kind::kCsv;
  if (extension == ".json" || extension == ".jsonl") return Kind::kJson;
  if (extension == ".parquet") return Kind::kParquet;
  return std::nullopt;
}

std::vector<fs::path> files_in(const fs::path& folder) {
  std::vector<fs::path> files;
  for (const fs::directory_entry& entry : fs::directory_iterator(folder)) {
    if (entry.is_regular_file() && kind_of(entry.path())) files.push_back(entry.path());
  }
  std::sort(files.begin(), files.end());
  if (files.empty()) {
    throw ConfigError(fmt::format(
        "{}: the folder has no .txt, .csv, .json, .jsonl or .parquet file; name the folder of the "
        "texts",
        folder.string()));
  }
  return files;
}

using Take = std::function<void(std::string_view)>;

void read_lines(LineReader& reader, bool keeps_linebreaks, const Take& take) {
  std::string text;
  for (LineChunk chunk; reader.next(chunk);) {
    for (const std::string_view line : chunk.lines) {
      if (!keeps_linebreaks) {
        take(line);
        continue;
      }
      text.assign(line);
      text += '\n';
      take(text);
    }
  }
}

void read_csv(LineReader& reader, const std::string& column, const Take& take) {
  CsvReader rows(reader);
  std::vector<std::string> row;
  if (!rows.next(row)) return;
  const auto found = std::find(row.begin(), row.end(), column);
  const size_t index = found == row.end() ? 0 : static_cast<size_t>(found - row.begin());
  const size_t width = row.size();
  while (rows.next(row)) {
    if (row.size() != width) {
      throw FormatError(
          fmt::format("{}: line {}: the row has {} fields, the header {}; put fields that hold "
                      "commas or line ends into double quotes",
                      reader.path().string(), rows.line(), row.size(), width));
    }
    take(row[index]);
  }
}

// The key of the texts in an object: `column`, or else its first key.
std::string key_in(const nlohmann::ordered_json& object, const std::string& column) {
  if (!object.is_object() || object.empty() || object.contains(column)) return column;
  return object.begin().key();
}

[[noreturn]] void fail(const LineReader& reader, int64_t line, const std::string& problem) {
  throw FormatError(fmt::format("{}: line {}: {}", reader.path().string(), line, problem));
}

// One list of objects, or of texts.
void read_json_list(const LineReader& reader, const std::string& text, const std::string& column,
                    const Take& take) {
  const nlohmann::ordered_json list = try_parse_ordered_json(text, kJsonLine);
  if (list.is_discarded()) fail(reader, 1, "a list begins here, and the file is not valid JSON");
  if (list.empty()) return;
  const std::string key = key_in(list.front(), column);
  for (size_t i = 0; i < list.size(); ++i) {
    const nlohmann::ordered_json& item = list[i];
    const auto* value = item.is_object() && item.contains(key) ? &item[key] : &item;
    if (!value->is_string()) {
      throw FormatError(fmt::format("{}: entry {} of the list has no text under \"{}\"",
                                    reader.path().string(), i, key));
    }
    take(value->get_ref<const std::string&>());
  }
}

void read_json(LineReader& reader, const std::string& column, const Take& take) {
  std::unique_ptr<JsonLineParser> parser;
  std::string list;
  for (LineChunk chunk; reader.next(chunk);) {
    for (size_t i = 0; i < chunk.lines.size(); ++i) {
      const std::string_view line = chunk.lines[i];
      if (!list.empty()) {
        list.append(line) += '\n';
        continue;
      }
      const size_t first = line.find_first_not_of(" \t");
      if (first == std::string_view::npos) continue;
      if (parser == nullptr && line[first] == '[') {
        list.append(line) += '\n';
        continue;
      }
      if (parser == nullptr) {
        const nlohmann::ordered_json object = try_parse_ordered_json(line, kJsonLine);
        parser = std::make_unique<JsonLineParser>(std::vector{key_in(object, column)});
      }
      const int64_t number = chunk.first_line + static_cast<int64_t>(i);
      if (const auto problem = parser->parse(line)) fail(reader, number, *problem);
      if (parser->texts(0).size() != 1) fail(reader, number, "expected one text, not a list");
      take(parser->texts(0)[0]);
    }
  }
  if (!list.empty()) read_json_list(reader, list, column, take);
}

void read_parquet(const fs::path& file, const std::string& column, const Take& take) {
  const ParquetFile parquet(file);
  const std::vector<std::string> columns = parquet.columns();
  const bool has_column = columns.empty() || std::ranges::find(columns, column) != columns.end();
  parquet.read_texts(has_column ? column : columns.front(), take);
}

}  // namespace

std::vector<fs::path> text_files(std::span<const std::string> words) {
  std::vector<fs::path> files;
  for (const std::string& word : words) {
    const fs::path path = word;
    if (!fs::exists(path)) throw IoError(fmt::format("{}: not found", word));
    if (fs::is_directory(path)) {
      for (fs::path& file : files_in(path)) files.push_back(std::move(file));
    } else if (kind_of(path)) {
      files.push_back(path);
    } else if (path.extension() == ".arrow") {
      throw ConfigError(fmt::format(
          "{}: .arrow files are not read; give the .parquet files of the data set, or write its "
          "texts as .jsonl with the datasets package: load_from_disk(FOLDER).to_json(FILE)",
          word));
    } else {
      throw ConfigError(
          fmt::format("{}: is not a text file; give .txt, .csv, .json, .jsonl or .parquet, or a "
                      "folder of them",
                      word));
    }
  }
  return files;
}

DatasetFiles dataset_files(const fs::path& folder) {
  DatasetFiles files;
  std::vector<fs::path> others;
  for (fs::path& file : files_in(folder)) {
    const std::string name = file.filename();
    if (name.starts_with("train")) {
      files.train.push_back(std::move(file));
    } else if (name.starts_with("valid") || name.starts_with("dev")) {
      files.validation.push_back(std::move(file));
    } else if (!name.starts_with("test")) {
      others.push_back(std::move(file));
    }
  }
  if (files.train.empty()) files.train = std::move(others);
  if (files.train.empty()) {
    throw ConfigError(
        fmt::format("{}: the data set has no files of a train split: train*.parquet "
                    "or the like; give its files with --train_file",
                    folder.string()));
  }
  return files;
}

void read_texts(const fs::path& file, const TextFileOptions& options, const Take& take) {
  const std::optional<Kind> kind = kind_of(file);
  invariant(kind.has_value(), "text_files() has chosen the file");
  if (*kind == Kind::kParquet) return read_parquet(file, options.column, take);
  LineReader reader(file);
  switch (*kind) {
    case Kind::kParquet:
      break;
    case Kind::kLines:
      return read_lines(reader, options.keeps_linebreaks, take);
    case Kind::kCsv:
      return read_csv(reader, options.column, take);
    case Kind::kJson:
      return read_json(reader, options.column, take);
  }
}

}  // namespace megatron

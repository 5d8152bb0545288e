#include "megatron/data/table_rows.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "megatron/core/error.h"
#include "megatron/core/json.h"
#include "megatron/core/listed.h"
#include "megatron/data/csv_reader.h"
#include "megatron/data/line_reader.h"

namespace megatron {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;

bool is_csv(const fs::path& file) {
  fs::path name = file.filename();
  if (name.extension() == ".gz" || name.extension() == ".xz") name = name.stem();
  const std::string extension = name.extension();
  if (extension == ".csv") return true;
  if (extension == ".json" || extension == ".jsonl") return false;
  throw ConfigError(fmt::format(
      "{}: examples with several columns are read from .csv, .json and .jsonl files; write them as "
      "one of these",
      file.string()));
}

FormatError no_column(const LineReader& reader, const std::string& column,
                      const std::vector<std::string>& found) {
  return FormatError(fmt::format("{}: has no column {}; its columns are {}", reader.path().string(),
                                 column, listed(found)));
}

void read_csv(LineReader& reader, const std::vector<std::string>& columns,
              const std::function<void(const TableRow&)>& take) {
  CsvReader rows(reader);
  std::vector<std::string> header;
  if (!rows.next(header)) return;
  std::vector<size_t> places;
  for (const std::string& column : columns) {
    const auto found = std::find(header.begin(), header.end(), column);
    if (found == header.end()) throw no_column(reader, column, header);
    places.push_back(static_cast<size_t>(found - header.begin()));
  }
  std::vector<std::string> row;
  std::vector<std::string> fields(columns.size());
  while (rows.next(row)) {
    if (row.size() != header.size()) {
      throw FormatError(
          fmt::format("{}: line {}: the row has {} fields, the header {}; put fields that hold "
                      "commas or line ends into double quotes",
                      reader.path().string(), rows.line(), row.size(), header.size()));
    }
    for (size_t i = 0; i < places.size(); ++i) fields[i] = row[places[i]];
    take({fields, rows.line()});
  }
}

// Calls `take` for each object, with its number, until it returns false: one object per line, or
// one list of them.
void read_objects(LineReader& reader, const std::function<bool(const Json&, int64_t)>& take) {
  const auto object_of = [&](const Json& value, int64_t number) -> const Json& {
    if (value.is_object()) return value;
    throw FormatError(
        fmt::format("{}: line or entry {}: expected a JSON object, like {{\"text\": \"a text\", "
                    "\"label\": 0}}",
                    reader.path().string(), number));
  };
  std::string list;
  bool is_first = true;
  for (LineChunk chunk; reader.next(chunk);) {
    for (size_t i = 0; i < chunk.lines.size(); ++i) {
      const std::string_view line = chunk.lines[i];
      const size_t begin = line.find_first_not_of(" \t");
      if (begin == std::string_view::npos) continue;
      if (!list.empty() || (is_first && line[begin] == '[')) {
        list.append(line) += '\n';
        continue;
      }
      is_first = false;
      const int64_t number = chunk.first_line + static_cast<int64_t>(i);
      const Json object = try_parse_ordered_json(line, kJsonLine);
      if (!take(object_of(object, number), number)) return;
    }
  }
  if (list.empty()) return;
  const Json entries = try_parse_ordered_json(list, kJsonLine);
  if (!entries.is_array()) {
    throw FormatError(fmt::format("{}: a list begins there, and the file is not valid JSON",
                                  reader.path().string()));
  }
  for (size_t i = 0; i < entries.size(); ++i) {
    const auto number = static_cast<int64_t>(i);
    if (!take(object_of(entries[i], number), number)) return;
  }
}

std::vector<std::string> keys_of(const Json& object) {
  std::vector<std::string> keys;
  for (const auto& [key, value] : object.items()) keys.push_back(key);
  return keys;
}

void read_json_rows(LineReader& reader, const std::vector<std::string>& columns,
                    const std::function<void(const TableRow&)>& take) {
  std::vector<std::string> fields(columns.size());
  read_objects(reader, [&](const Json& object, int64_t number) {
    for (size_t i = 0; i < columns.size(); ++i) {
      const auto found = object.find(columns[i]);
      if (found == object.end() || found->is_null()) {
        throw FormatError(fmt::format("{}: line or entry {}: has no {}; it has {}",
                                      reader.path().string(), number, columns[i],
                                      listed(keys_of(object))));
      }
      fields[i] = found->is_string() ? found->get<std::string>() : found->dump();
    }
    take({fields, number});
    return true;
  });
}

}  // namespace

bool has_column(const fs::path& file, const std::string& column) {
  const bool is_table = is_csv(file);
  LineReader reader(file);
  if (is_table) {
    std::vector<std::string> header;
    return CsvReader(reader).next(header) && std::ranges::find(header, column) != header.end();
  }
  bool has = false;
  read_objects(reader, [&](const Json& object, int64_t) {
    has = object.contains(column);
    return false;
  });
  return has;
}

void read_table(const fs::path& file, const std::vector<std::string>& columns,
                const std::function<void(const TableRow&)>& take) {
  const bool is_table = is_csv(file);
  LineReader reader(file);
  if (is_table) return read_csv(reader, columns, take);
  read_json_rows(reader, columns, take);
}

}  // namespace megatron

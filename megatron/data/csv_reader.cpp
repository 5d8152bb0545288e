#include "megatron/data/csv_reader.h"

#include <fmt/format.h>

#include "megatron/core/error.h"

namespace megatron {

bool CsvReader::next_line(std::string_view& line) {
  if (next_ == chunk_.lines.size()) {
    if (!lines_.next(chunk_)) return false;
    next_ = 0;
  }
  line = chunk_.lines[next_++];
  return true;
}

bool CsvReader::split(std::string_view line, bool is_open, std::vector<std::string>& row) {
  if (!is_open) row.emplace_back();
  bool is_quoted = is_open;
  for (size_t i = 0; i < line.size(); ++i) {
    const char c = line[i];
    if (is_quoted && c == '"' && i + 1 < line.size() && line[i + 1] == '"') {
      row.back() += '"';
      ++i;
    } else if (c == '"' && (is_quoted || row.back().empty())) {
      is_quoted = !is_quoted;
    } else if (c == ',' && !is_quoted) {
      row.emplace_back();
    } else {
      row.back() += c;
    }
  }
  return is_quoted;
}

bool CsvReader::next(std::vector<std::string>& row) {
  row.clear();
  std::string_view line;
  do {
    if (!next_line(line)) return false;
  } while (line.empty());
  const int64_t first = this->line();
  bool is_open = split(line, false, row);
  while (is_open) {
    if (!next_line(line)) {
      throw FormatError(fmt::format("{}: line {}: a double quote is never closed",
                                    lines_.path().string(), first));
    }
    row.back() += '\n';
    is_open = split(line, true, row);
  }
  return true;
}

}  // namespace megatron

#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "megatron/data/line_reader.h"

namespace megatron {

// Reads comma-separated values (RFC 4180): quoted fields may contain commas, line ends and doubled
// double quotes. Skips blank lines between rows, as pandas does.
class CsvReader {
 public:
  // `lines` must outlive it.
  explicit CsvReader(LineReader& lines) : lines_(lines) {}

  // False at the end. Throws FormatError, with file and line, for a quote that is never closed.
  bool next(std::vector<std::string>& row);
  // The line on which the last row ended, from 1.
  int64_t line() const { return chunk_.first_line + static_cast<int64_t>(next_) - 1; }

 private:
  bool next_line(std::string_view& line);
  // Appends the line's fields to the row; true if its last field is still open.
  static bool split(std::string_view line, bool is_open, std::vector<std::string>& row);

  LineReader& lines_;
  LineChunk chunk_;
  size_t next_ = 0;  // in chunk_.lines
};

}  // namespace megatron

#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <span>
#include <string>
#include <vector>

namespace megatron {

// A row of a file of examples: the texts of the requested columns. Numbers are as written in the
// file, lists are JSON.
struct TableRow {
  std::span<const std::string> fields;
  int64_t number = 0;  // line number, or index in a list
};

// True if a .csv or .json(l) file, compressed or not, has a column of that name, according to the
// header of a .csv or the first object of a .json. Throws ConfigError for other files; IoError,
// FormatError.
bool has_column(const std::filesystem::path& file, const std::string& column);

// Calls `take` for each row of such a file, in order. Throws what has_column() throws, and
// FormatError, with the file and the line or entry, for a row without one of the columns.
void read_table(const std::filesystem::path& file, const std::vector<std::string>& columns,
                const std::function<void(const TableRow& row)>& take);

}  // namespace megatron

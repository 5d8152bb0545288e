#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <span>
#include <string>
#include <vector>

namespace megatron {

// A row of a file of examples: the texts of the columns that were asked for. Numbers are as they
// are written, and lists as JSON.
struct TableRow {
  std::span<const std::string> fields;
  int64_t number = 0;  // of the line, or of the entry of a list
};

// Do the rows of a .csv or .json(l) file, packed or not, have a column of that name? The header of
// a .csv says it, or the first object of a .json. Throws ConfigError for other files; IoError,
// FormatError.
bool has_column(const std::filesystem::path& file, const std::string& column);

// Gives each row of such a file to `take`, in order. Throws what has_column() throws, and
// FormatError, with the file and the line or entry, for a row without one of the columns.
void read_table(const std::filesystem::path& file, const std::vector<std::string>& columns,
                const std::function<void(const TableRow& row)>& take);

}  // namespace megatron

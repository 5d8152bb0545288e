#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "megatron/core/file.h"
#include "megatron/data/parquet/column_pages.h"

namespace megatron {

// The columns of texts of an Apache Parquet file (format version 2, as pandas and Hugging Face's
// data sets write it). Maps the file; a page is in memory at a time.
class ParquetFile {
 public:
  // Throws IoError, and FormatError for files that are not Parquet's, or encrypted.
  explicit ParquetFile(const std::filesystem::path& path);
  ~ParquetFile();

  int64_t num_rows() const { return num_rows_; }
  // The names of the top-level columns.
  std::vector<std::string> columns() const;
  // Calls `take` for the column's text in every row, in order. Throws ConfigError if there is no
  // such column of texts, FormatError for rows without a text and for damaged or unsupported pages.
  void read_texts(const std::string& column,
                  const std::function<void(std::string_view text)>& take) const;

 private:
  struct Column;
  struct Chunk;

  void read_description(std::string_view description);
  ColumnPages pages_of(const Column& column, const Chunk& chunk) const;

  MappedFile file_;
  int64_t num_rows_ = 0;
  std::vector<Column> columns_;
  std::vector<std::vector<Chunk>> row_groups_;  // by leaf
};

}  // namespace megatron

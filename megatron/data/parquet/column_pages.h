#pragma once

#include <cstdint>
#include <functional>
#include <string_view>

namespace megatron {

// Compression of a column's pages; the numbers are Parquet's.
enum class ParquetCodec { kNone = 0, kSnappy = 1, kGzip = 2, kZstd = 6 };

// A column of texts in a row group.
struct ColumnPages {
  std::string_view bytes;  // its pages, concatenated
  int64_t num_values = 0;  // including null values
  ParquetCodec codec = ParquetCodec::kNone;
  bool is_optional = false;  // values may be null
};

// Calls `take` for the column's values, in order; nullptr for a null value. Supports plain and
// dictionary encoding, and both versions of pages. Throws FormatError, without the file's name, for
// damaged pages and for other encodings, which it names.
void read_pages(const ColumnPages& column,
                const std::function<void(const std::string_view* text)>& take);

}  // namespace megatron

#pragma once

#include <cstdint>
#include <functional>
#include <string_view>

namespace megatron {

// How the bytes of a column's pages are packed; the numbers are Parquet's.
enum class ParquetCodec { kNone = 0, kSnappy = 1, kGzip = 2, kZstd = 6 };

// A column of texts in a row group.
struct ColumnPages {
  std::string_view bytes;  // its pages, one behind the other
  int64_t num_values = 0;  // with those that are absent
  ParquetCodec codec = ParquetCodec::kNone;
  bool is_optional = false;  // may values be absent?
};

// Gives the column's values to `take`, in order; nullptr for one that is absent. Plain values and
// those of a dictionary are read, of both versions of pages. Throws FormatError, without a file's
// name, for damaged pages and for other encodings, by their names.
void read_pages(const ColumnPages& column,
                const std::function<void(const std::string_view* text)>& take);

}  // namespace megatron

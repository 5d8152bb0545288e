#include "megatron/data/parquet/parquet_file.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <cstring>

#include "megatron/core/error.h"
#include "megatron/data/parquet/thrift_reader.h"

namespace megatron {
namespace {

constexpr std::string_view kParquetMagic = "PAR1";
constexpr std::string_view kEncryptedMagic = "PARE";
constexpr size_t kTailBytes = 8;  // the size of the description, and the magic

// Constants of the format.
constexpr int64_t kByteArray = 6;
constexpr int64_t kOptional = 1;
constexpr int64_t kRepeated = 2;
constexpr std::array kTypeNames = {"BOOLEAN", "INT32",  "INT64",      "INT96",
                                   "FLOAT",   "DOUBLE", "BYTE_ARRAY", "FIXED_LEN_BYTE_ARRAY"};
constexpr std::array kCodecNames = {"UNCOMPRESSED", "SNAPPY", "GZIP", "LZO",
                                    "BROTLI",       "LZ4",    "ZSTD", "LZ4_RAW"};

template <class Names>
std::string name_in(const Names& names, int64_t number) {
  return number >= 0 && number < std::ssize(names) ? names[static_cast<size_t>(number)]
                                                   : std::to_string(number);
}

std::string_view text_of(const MappedFile& file) {
  return {reinterpret_cast<const char*>(file.bytes().data()), file.bytes().size()};
}

[[noreturn]] void fail(const MappedFile& file, std::string_view problem) {
  throw FormatError(fmt::format("{}: {}", file.path().string(), problem));
}

// An entry of the schema, which lists a tree from its root on, parents before children.
struct SchemaEntry {
  std::string name;
  int64_t type = -1;  // of leaves
  int64_t repetition = 0;
  int64_t num_children = 0;
};

SchemaEntry read_schema_entry(ThriftReader& reader) {
  SchemaEntry entry;
  reader.read_struct([&](int64_t id) {
    if (id == 1) entry.type = reader.integer();
    if (id == 3) entry.repetition = reader.integer();
    if (id == 4) entry.name = reader.text();
    if (id == 5) entry.num_children = reader.integer();
    return id == 1 || (id >= 3 && id <= 5);
  });
  return entry;
}

}  // namespace

struct ParquetFile::Column {
  std::string name;
  int64_t type = -1;
  bool is_optional = false;
  size_t leaf = 0;  // its number in each row group
};

struct ParquetFile::Chunk {  // of a column in a row group
  int64_t codec = 0;
  int64_t num_values = 0;
  int64_t begin = 0;
  int64_t bytes = 0;
};

ParquetFile::ParquetFile(const std::filesystem::path& path) : file_(path) {
  const std::string_view text = text_of(file_);
  if (text.size() < kParquetMagic.size() + kTailBytes || !text.ends_with(kParquetMagic)) {
    fail(file_, text.ends_with(kEncryptedMagic)
                    ? "the Parquet file is encrypted; write it without encryption"
                    : "is no Parquet file, or its end is missing; copy it again");
  }
  uint32_t size = 0;
  std::memcpy(&size, text.data() + text.size() - kTailBytes, sizeof(size));
  if (size > text.size() - kTailBytes - kParquetMagic.size()) {
    fail(file_, "the Parquet file is damaged: its description is larger than the file");
  }
  try {
    read_description(text.substr(text.size() - kTailBytes - size, size));
  } catch (const FormatError& error) {
    fail(file_, fmt::format("the Parquet file is damaged: {}", error.what()));
  }
}

ParquetFile::~ParquetFile() = default;

void ParquetFile::read_description(std::string_view description) {
  ThriftReader reader(description);
  std::vector<SchemaEntry> schema;
  const auto read_chunk = [&] {
    Chunk chunk;
    int64_t data = 0;
    int64_t dictionary = 0;
    const auto read_column = [&](int64_t id) {
      if (id == 4) chunk.codec = reader.integer();
      if (id == 5) chunk.num_values = reader.integer();
      if (id == 7) chunk.bytes = reader.integer();
      if (id == 9) data = reader.integer();
      if (id == 11) dictionary = reader.integer();
      return id == 4 || id == 5 || id == 7 || id == 9 || id == 11;
    };
    reader.read_struct([&](int64_t id) {
      if (id == 3) reader.read_struct(read_column);
      return id == 3;
    });
    chunk.begin = dictionary > 0 ? std::min(dictionary, data) : data;
    return chunk;
  };
  reader.read_struct([&](int64_t id) {
    if (id == 2) reader.read_list([&] { schema.push_back(read_schema_entry(reader)); });
    if (id == 3) num_rows_ = reader.integer();
    if (id != 4) return id == 2 || id == 3;
    reader.read_list([&] {
      std::vector<Chunk>& chunks = row_groups_.emplace_back();
      reader.read_struct([&](int64_t field) {
        if (field == 1) reader.read_list([&] { chunks.push_back(read_chunk()); });
        return field == 1;
      });
    });
    return true;
  });
  size_t leaf = 0;
  int64_t nested = 0;  // entries inside structures that are still to come
  for (size_t i = 1; i < schema.size(); ++i) {
    const SchemaEntry& entry = schema[i];
    const bool is_leaf = entry.num_children <= 0;
    if (nested == 0 && is_leaf && entry.repetition != kRepeated) {
      columns_.push_back({entry.name, entry.type, entry.repetition == kOptional, leaf});
    }
    if (nested > 0) --nested;
    nested += std::clamp<int64_t>(entry.num_children, 0, std::ssize(schema));
    leaf += is_leaf ? 1 : 0;
  }
}

std::vector<std::string> ParquetFile::columns() const {
  std::vector<std::string> names;
  for (const Column& column : columns_) names.push_back(column.name);
  return names;
}

ColumnPages ParquetFile::pages_of(const Column& column, const Chunk& chunk) const {
  switch (static_cast<ParquetCodec>(chunk.codec)) {
    case ParquetCodec::kNone:
    case ParquetCodec::kSnappy:
    case ParquetCodec::kGzip:
    case ParquetCodec::kZstd:
      break;
    default:
      fail(file_, fmt::format("the column {} is packed by {}, which is not read; write the file "
                              "with SNAPPY, GZIP, ZSTD or no compression",
                              column.name, name_in(kCodecNames, chunk.codec)));
  }
  const std::string_view text = text_of(file_);
  const auto size = static_cast<int64_t>(text.size());
  if (chunk.begin < 0 || chunk.begin > size || chunk.bytes < 0 ||
      chunk.bytes > size - chunk.begin) {
    fail(file_, fmt::format("the Parquet file is damaged: the column {} extends beyond its end",
                            column.name));
  }
  return {text.substr(static_cast<size_t>(chunk.begin), static_cast<size_t>(chunk.bytes)),
          chunk.num_values, static_cast<ParquetCodec>(chunk.codec), column.is_optional};
}

void ParquetFile::read_texts(const std::string& column,
                             const std::function<void(std::string_view text)>& take) const {
  const auto found = std::ranges::find(columns_, column, &Column::name);
  if (found == columns_.end()) {
    throw ConfigError(fmt::format("{}: there is no column {}; there are {}", file_.path().string(),
                                  column, fmt::join(columns(), ", ")));
  }
  if (found->type != kByteArray) {
    throw ConfigError(fmt::format("{}: the column {} holds {}, not texts; there are {}",
                                  file_.path().string(), column, name_in(kTypeNames, found->type),
                                  fmt::join(columns(), ", ")));
  }
  int64_t row = 0;
  for (const std::vector<Chunk>& chunks : row_groups_) {
    if (found->leaf >= chunks.size()) {
      fail(file_, "the Parquet file is damaged: a row group lacks columns");
    }
    const ColumnPages pages = pages_of(*found, chunks[found->leaf]);
    try {
      read_pages(pages, [&](const std::string_view* text) {
        ++row;
        if (text == nullptr) {
          throw FormatError(fmt::format("row {} has no text; drop it or put an empty one", row));
        }
        take(*text);
      });
    } catch (const FormatError& error) {
      fail(file_, fmt::format("column {}: {}", column, error.what()));
    }
  }
  if (row != num_rows_) {
    fail(file_, fmt::format("the Parquet file is damaged: the column {} has {} of {} rows", column,
                            row, num_rows_));
  }
}

}  // namespace megatron

#include "megatron/data/parquet/column_pages.h"

#include <fmt/format.h>
#include <zlib.h>

#include <array>
#include <bit>
#include <cstring>
#include <string>
#include <vector>

#include "megatron/core/error.h"
#include "megatron/core/parts.h"
#include "megatron/data/parquet/codecs.h"
#include "megatron/data/parquet/thrift_reader.h"

namespace megatron {
namespace {

// Constants of the format.
constexpr int64_t kDataPage = 0;
constexpr int64_t kDictionaryPage = 2;
constexpr int64_t kDataPageV2 = 3;
constexpr int64_t kPlain = 0;
constexpr int64_t kPlainDictionary = 2;
constexpr int64_t kRunLength = 3;
constexpr int64_t kRunLengthDictionary = 8;
constexpr std::array kEncodingNames = {
    "PLAIN",          "GROUP_VAR_INT",       "PLAIN_DICTIONARY",        "RLE",
    "BIT_PACKED",     "DELTA_BINARY_PACKED", "DELTA_LENGTH_BYTE_ARRAY", "DELTA_BYTE_ARRAY",
    "RLE_DICTIONARY", "BYTE_STREAM_SPLIT"};

// Maximum uncompressed size of a page of this size. Writers make pages of about 1 MiB.
constexpr int64_t kMaxPageBytes = int64_t{256} << 20;
constexpr int64_t kMaxRatio = 1100;  // deflate's 1032 is the largest of the codecs with a limit

void expect(bool is_right, const char* what) {
  if (!is_right) throw FormatError(fmt::format("a page is damaged: {}", what));
}

struct PageHeader {
  int64_t type = -1;
  int64_t unpacked_bytes = -1;
  int64_t packed_bytes = -1;
  int64_t num_values = -1;
  int64_t encoding = -1;
  int64_t levels_encoding = kRunLength;  // of version 1
  int64_t levels_bytes = 0;              // of version 2, which never packs them
  bool is_packed = true;                 // of version 2
};

PageHeader read_header(ThriftReader& reader) {
  PageHeader header;
  const auto set = [&](int64_t& value) {
    value = reader.integer();
    return true;
  };
  const auto read_data_page = [&](int64_t id) {
    if (id == 1) return set(header.num_values);
    if (id == 2) return set(header.encoding);
    return id == 3 && set(header.levels_encoding);
  };
  const auto read_dictionary_page = [&](int64_t id) {
    if (id == 1) return set(header.num_values);
    return id == 2 && set(header.encoding);
  };
  const auto read_data_page_v2 = [&](int64_t id) {
    if (id == 1) return set(header.num_values);
    if (id == 4) return set(header.encoding);
    if (id == 5) return set(header.levels_bytes);
    if (id == 7) header.is_packed = reader.boolean();
    return id == 7;
  };
  reader.read_struct([&](int64_t id) {
    if (id == 1) return set(header.type);
    if (id == 2) return set(header.unpacked_bytes);
    if (id == 3) return set(header.packed_bytes);
    if (id == 5) reader.read_struct(read_data_page);
    if (id == 7) reader.read_struct(read_dictionary_page);
    if (id == 8) reader.read_struct(read_data_page_v2);
    return id == 5 || id == 7 || id == 8;
  });
  return header;
}

void unpack_gzip(std::string& y, std::string_view x) {
  constexpr int kDetectsGzipAndZlib = 32;
  z_stream stream{};
  expect(inflateInit2(&stream, MAX_WBITS + kDetectsGzipAndZlib) == Z_OK, "it cannot be unpacked");
  stream.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(x.data()));
  stream.avail_in = static_cast<uInt>(x.size());
  stream.next_out = reinterpret_cast<Bytef*>(y.data());
  stream.avail_out = static_cast<uInt>(y.size());
  const int code = inflate(&stream, Z_FINISH);
  const bool is_whole = code == Z_STREAM_END && stream.avail_out == 0;
  inflateEnd(&stream);
  expect(is_whole, "it cannot be unpacked");
}

std::string unpacked(ParquetCodec codec, std::string_view x, int64_t bytes) {
  const auto packed_bytes = static_cast<int64_t>(x.size());
  expect(bytes >= 0 && bytes <= kMaxPageBytes, "its size");
  expect(codec == ParquetCodec::kZstd || bytes <= kMaxRatio * (packed_bytes + 1), "its size");
  std::string y(static_cast<size_t>(bytes), '\0');
  switch (codec) {
    case ParquetCodec::kNone:
      expect(packed_bytes == bytes, "its size");
      y.assign(x);
      return y;
    case ParquetCodec::kSnappy:
      if constexpr (kHasSnappy) {
        expect(unpack_snappy(y, x), "it cannot be unpacked");
        return y;
      } else {
        refuse_missing("Parquet packed by Snappy", "MG_SNAPPY");
      }
    case ParquetCodec::kGzip:
      unpack_gzip(y, x);
      return y;
    case ParquetCodec::kZstd:
      if constexpr (kHasZstd) {
        expect(unpack_zstd(y, x), "it cannot be unpacked");
        return y;
      } else {
        refuse_missing("Parquet packed by Zstandard", "MG_ZSTD");
      }
  }
  throw InternalError("ParquetCodec out of range");
}

uint32_t little_endian(std::string_view& x) {
  expect(x.size() >= 4, "a length extends beyond its end");
  uint32_t value = 0;
  static_assert(std::endian::native == std::endian::little);
  std::memcpy(&value, x.data(), 4);
  x.remove_prefix(4);
  return value;
}

// A plain value: its length, its bytes.
std::string_view next_text(std::string_view& x) {
  const uint32_t size = little_endian(x);
  expect(size <= x.size(), "a text extends beyond its end");
  const std::string_view text = x.substr(0, size);
  x.remove_prefix(size);
  return text;
}

// Decodes integers in the "RLE/bit-packing hybrid": runs of one value, or groups of eight packed
// values.
class RunReader {
 public:
  RunReader(std::string_view bytes, int bits) : bytes_(bytes), bits_(bits) {
    expect(bits >= 0 && bits <= 32, "the width of its numbers");
  }

  uint32_t next() {
    if (left_ == 0) begin_run();
    --left_;
    if (!is_packed_) return value_;
    uint64_t bits = 0;  // at most 7 before the number
    const auto first = static_cast<size_t>(bit_ / 8);
    const size_t count = std::min<size_t>(8, packed_.size() - first);
    std::memcpy(&bits, packed_.data() + first, count);
    const uint64_t number = bits >> (bit_ % 8) & ((uint64_t{1} << bits_) - 1);
    bit_ += bits_;
    return static_cast<uint32_t>(number);
  }

 private:
  void begin_run() {
    uint64_t head = 0;
    for (int shift = 0;; shift += 7) {
      expect(!bytes_.empty() && shift < 35, "a run extends beyond its end");
      const auto byte = static_cast<uint8_t>(bytes_.front());
      bytes_.remove_prefix(1);
      head |= static_cast<uint64_t>(byte & 0x7f) << shift;
      if ((byte & 0x80) == 0) break;
    }
    is_packed_ = (head & 1) != 0;
    const uint64_t count = head >> 1;
    expect(count > 0, "an empty run");
    if (is_packed_) {
      // The last run may be truncated after the last value.
      const size_t size =
          std::min(bytes_.size(), static_cast<size_t>(count) * static_cast<size_t>(bits_));
      packed_ = bytes_.substr(0, size);
      bytes_.remove_prefix(size);
      left_ = bits_ == 0 ? count * 8 : std::min(count * 8, size * 8 / static_cast<uint64_t>(bits_));
      expect(left_ > 0, "an empty run");
      bit_ = 0;
      return;
    }
    const auto size = static_cast<size_t>((bits_ + 7) / 8);
    expect(size <= bytes_.size(), "a run extends beyond its end");
    value_ = 0;
    std::memcpy(&value_, bytes_.data(), size);
    bytes_.remove_prefix(size);
    left_ = count;
  }

  std::string_view bytes_;
  int bits_;
  uint64_t left_ = 0;  // of the run
  bool is_packed_ = false;
  uint32_t value_ = 0;
  std::string_view packed_;
  int64_t bit_ = 0;  // in packed_
};

// The pages of a column, in the order of the file.
class PageReader {
 public:
  PageReader(const ColumnPages& column,
             const std::function<void(const std::string_view* text)>& take)
      : column_(column), take_(take) {}

  void run() {
    int64_t left = column_.num_values;
    std::string_view rest = column_.bytes;
    while (left > 0) {
      ThriftReader reader(rest);
      const PageHeader header = read_header(reader);
      rest.remove_prefix(reader.position());
      expect(header.packed_bytes >= 0 && header.packed_bytes <= std::ssize(rest),
             "it extends beyond the column's end");
      const std::string_view body = rest.substr(0, static_cast<size_t>(header.packed_bytes));
      rest.remove_prefix(body.size());
      if (header.type == kDictionaryPage) {
        read_dictionary(header, body);
      } else if (header.type == kDataPage || header.type == kDataPageV2) {
        expect(header.num_values >= 0 && header.num_values <= left, "the number of its values");
        header.type == kDataPage ? read_page(header, body) : read_page_v2(header, body);
        left -= header.num_values;
      }
    }
  }

 private:
  void read_dictionary(const PageHeader& header, std::string_view body) {
    dictionary_page_ = unpacked(column_.codec, body, header.unpacked_bytes);
    dictionary_.clear();
    std::string_view rest = dictionary_page_;
    for (int64_t i = 0; i < header.num_values; ++i) dictionary_.push_back(next_text(rest));
  }

  void read_page(const PageHeader& header, std::string_view body) {
    const std::string page = unpacked(column_.codec, body, header.unpacked_bytes);
    std::string_view values = page;
    std::string_view levels;
    if (column_.is_optional) {
      if (header.levels_encoding != kRunLength) refuse(header.levels_encoding);
      levels = next_text(values);
    }
    take_values(header, levels, values);
  }

  void read_page_v2(const PageHeader& header, std::string_view body) {
    expect(header.levels_bytes >= 0 && header.levels_bytes <= std::ssize(body),
           "the size of its levels");
    const auto levels_bytes = static_cast<size_t>(header.levels_bytes);
    const ParquetCodec codec = header.is_packed ? column_.codec : ParquetCodec::kNone;
    const std::string values =
        unpacked(codec, body.substr(levels_bytes), header.unpacked_bytes - header.levels_bytes);
    take_values(header, body.substr(0, levels_bytes), values);
  }

  void take_values(const PageHeader& header, std::string_view levels, std::string_view values) {
    RunReader is_there(levels, 1);
    const bool is_plain = header.encoding == kPlain;
    if (!is_plain && header.encoding != kPlainDictionary &&
        header.encoding != kRunLengthDictionary) {
      refuse(header.encoding);
    }
    int width = 0;
    if (!is_plain && !values.empty()) {
      width = static_cast<uint8_t>(values.front());
      values.remove_prefix(1);
    }
    RunReader indices(values, width);
    for (int64_t i = 0; i < header.num_values; ++i) {
      if (column_.is_optional && is_there.next() == 0) {
        take_(nullptr);
        continue;
      }
      const std::string_view text = is_plain ? next_text(values) : entry(indices.next());
      take_(&text);
    }
  }

  std::string_view entry(uint32_t index) const {
    expect(index < dictionary_.size(), "a value is not in the dictionary");
    return dictionary_[index];
  }

  [[noreturn]] static void refuse(int64_t encoding) {
    const bool is_known = encoding >= 0 && encoding < std::ssize(kEncodingNames);
    throw FormatError(fmt::format(
        "the encoding {} is not read; write the file with PLAIN or dictionary encoding",
        is_known ? kEncodingNames[static_cast<size_t>(encoding)] : std::to_string(encoding)));
  }

  const ColumnPages& column_;
  const std::function<void(const std::string_view* text)>& take_;
  std::string dictionary_page_;
  std::vector<std::string_view> dictionary_;
};

}  // namespace

void read_pages(const ColumnPages& column,
                const std::function<void(const std::string_view* text)>& take) {
  PageReader(column, take).run();
}

}  // namespace megatron

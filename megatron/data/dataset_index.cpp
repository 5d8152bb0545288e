#include "megatron/data/dataset_index.h"

#include <fmt/format.h>

#include <bit>
#include <string>
#include <string_view>

#include "megatron/core/error.h"

namespace megatron {
namespace {

static_assert(std::endian::native == std::endian::little, "the files are little-endian");

constexpr std::string_view kMmididxMagic{"MMIDIDX\0\0", 9};
constexpr std::string_view kTntidxMagic{"TNTIDX\0\0", 8};
constexpr uint64_t kVersion = 1;
constexpr int64_t kMmididxHeader = 34;
constexpr int64_t kTntidxHeader = 56;

// Reads fields of one file and reports problems.
class IndexReader {
 public:
  IndexReader(std::span<const std::byte> bytes, const std::filesystem::path& path)
      : bytes_(bytes), path_(path.string()) {}

  IndexLayout read(bool multimodal) const {
    if (starts_with(kTntidxMagic)) return read_tntidx(multimodal);
    const std::string_view begin(reinterpret_cast<const char*>(bytes_.data()),
                                 std::min(bytes_.size(), kMmididxMagic.size()));
    if (!kMmididxMagic.starts_with(begin)) {
      throw FormatError(
          fmt::format("{}: index magic is \"{}\", expected MMIDIDX or TNTIDX; is this the .bin "
                      "file?",
                      path_, printable(begin)));
    }
    return read_mmididx(multimodal);
  }

 private:
  IndexLayout read_mmididx(bool multimodal) const {
    expect_header(kMmididxHeader, 9);
    IndexLayout layout;
    layout.dtype = checked_dtype(load_unaligned<uint8_t>(bytes_.data() + 17), 17);
    const auto sequences = load_unaligned<uint64_t>(bytes_.data() + 18);
    const auto documents = load_unaligned<uint64_t>(bytes_.data() + 26);
    expect_arrays(kMmididxHeader, sequences, multimodal ? 13 : 12, documents,
                  multimodal ? " with modes" : "");
    layout.num_sequences = static_cast<int64_t>(sequences);
    layout.document_index_size = static_cast<int64_t>(documents);
    layout.lengths = kMmididxHeader;
    layout.pointers = layout.lengths + 4 * layout.num_sequences;
    layout.documents = layout.pointers + 8 * layout.num_sequences;
    if (multimodal) layout.modes = layout.documents + 8 * layout.document_index_size;
    return layout;
  }

  IndexLayout read_tntidx(bool multimodal) const {
    if (multimodal) {
      throw FormatError(fmt::format(
          "{}: is a TNTIDX index, which holds no mode per sequence; leave --multimodal out",
          path_));
    }
    expect_header(kTntidxHeader, 8);
    IndexLayout layout;
    layout.format = IndexFormat::kTntidx;
    layout.dtype = checked_dtype(field(16), 16);
    if (field(24) != static_cast<uint64_t>(token_bytes(layout.dtype))) {
      throw FormatError(fmt::format(
          "{}: the element size at offset 24 is {}, but {} has {} bytes; the index is damaged",
          path_, field(24), token_dtype_name(layout.dtype), token_bytes(layout.dtype)));
    }
    const uint64_t sequences = field(32);
    expect_arrays(kTntidxHeader + 16, sequences, 24, field(48), "");
    layout.num_sequences = static_cast<int64_t>(sequences);
    layout.document_index_size = static_cast<int64_t>(field(48));
    layout.pointers = kTntidxHeader + 8 * (layout.num_sequences + 1);
    layout.lengths = layout.pointers + 8 * (layout.num_sequences + 1);
    layout.documents = layout.lengths + 8 * layout.num_sequences;
    expect_one_dimension(layout.num_sequences);
    return layout;
  }

  bool starts_with(std::string_view magic) const {
    return bytes_.size() >= magic.size() &&
           std::memcmp(bytes_.data(), magic.data(), magic.size()) == 0;
  }

  static std::string printable(std::string_view bytes) {
    std::string text;
    for (const char c : bytes) {
      text += c >= 0x20 && c < 0x7f ? std::string(1, c)
                                    : fmt::format("\\x{:02x}", static_cast<unsigned char>(c));
    }
    return text;
  }

  uint64_t field(int64_t offset) const { return load_unaligned<uint64_t>(bytes_.data() + offset); }

  void expect_header(int64_t header, int64_t version_offset) const {
    if (static_cast<int64_t>(bytes_.size()) < header) {
      throw FormatError(fmt::format(
          "{}: index has {} bytes, its header alone takes {}; the file is truncated, write it "
          "again",
          path_, bytes_.size(), header));
    }
    if (field(version_offset) == kVersion) return;
    throw FormatError(fmt::format("{}: index version at offset {} is {}, expected {}", path_,
                                  version_offset, field(version_offset), kVersion));
  }

  TokenDtype checked_dtype(uint64_t code, int64_t offset) const {
    if ((code >= 1 && code <= 5) || code == 8) return static_cast<TokenDtype>(code);
    if (code == 6 || code == 7) {
      throw FormatError(
          fmt::format("{}: element type code {} at offset {} is floating point, which "
                      "token data never is; is this a dataset of tokens?",
                      path_, code, offset));
    }
    throw FormatError(
        fmt::format("{}: element type code {} at offset {} is not one of 1-5 and 8; the index "
                    "is damaged or of a newer version",
                    path_, code, offset));
  }

  void expect_arrays(int64_t header, uint64_t sequences, uint64_t per_sequence, uint64_t documents,
                     std::string_view with_modes) const {
    const uint64_t most = bytes_.size();  // keeps the products below from overflowing
    if (sequences <= most / per_sequence && documents <= most / 8 &&
        static_cast<uint64_t>(header) + per_sequence * sequences + 8 * documents <= most) {
      return;
    }
    throw FormatError(fmt::format(
        "{}: index has {} bytes, but {} sequences and {} document entries{} take {:.0f}; the file "
        "is truncated, write it again",
        path_, bytes_.size(), sequences, documents, with_modes,
        static_cast<double>(header) +
            static_cast<double>(per_sequence) * static_cast<double>(sequences) +
            8 * static_cast<double>(documents)));
  }

  void expect_one_dimension(int64_t sequences) const {
    bool is_flat = field(40) == static_cast<uint64_t>(sequences);
    for (int64_t i = 0; is_flat && i <= sequences; ++i) {
      is_flat = load_unaligned<int64_t>(bytes_.data() + kTntidxHeader, i) == i;
    }
    if (is_flat) return;
    throw FormatError(fmt::format(
        "{}: the sequences have not one length each, as those of tokens do; is this a dataset of "
        "tokens?",
        path_));
  }

  std::span<const std::byte> bytes_;
  std::string path_;
};

template <class T>
void write_value(FileWriter& file, T value) {
  file.write(std::as_bytes(std::span<const T, 1>(&value, 1)));
}

template <class T>
void write_values(FileWriter& file, const std::vector<T>& values) {
  file.write(std::as_bytes(std::span<const T>(values)));
}

void write_mmididx(FileWriter& file, const IndexContents& contents) {
  file.write(kMmididxMagic);
  write_value(file, kVersion);
  write_value(file, static_cast<uint8_t>(contents.dtype));
  write_value(file, static_cast<uint64_t>(contents.lengths.size()));
  write_value(file, static_cast<uint64_t>(contents.document_index.size()));
  write_values(file, contents.lengths);
  int64_t pointer = 0;
  for (const int32_t length : contents.lengths) {
    write_value(file, pointer);
    pointer += length * token_bytes(contents.dtype);
  }
  write_values(file, contents.document_index);
  write_values(file, contents.modes);
}

void write_tntidx(FileWriter& file, const IndexContents& contents) {
  const uint64_t sequences = contents.lengths.size();
  file.write(kTntidxMagic);
  write_value(file, kVersion);
  write_value(file, static_cast<uint64_t>(contents.dtype));
  write_value(file, static_cast<uint64_t>(token_bytes(contents.dtype)));
  write_value(file, sequences);
  write_value(file, sequences);
  write_value(file, static_cast<uint64_t>(contents.document_index.size()));
  for (uint64_t i = 0; i <= sequences; ++i) write_value(file, i);
  int64_t pointer = 0;
  write_value(file, pointer);
  for (const int32_t length : contents.lengths) write_value(file, pointer += length);
  for (const int32_t length : contents.lengths) write_value(file, int64_t{length});
  write_values(file, contents.document_index);
}

}  // namespace

IndexLayout read_index_layout(std::span<const std::byte> bytes, bool multimodal,
                              const std::filesystem::path& path) {
  return IndexReader(bytes, path).read(multimodal);
}

void write_index(FileWriter& file, IndexFormat format, const IndexContents& contents) {
  if (format == IndexFormat::kMmididx) return write_mmididx(file, contents);
  invariant(contents.modes.empty(), "a TNTIDX index has no modes");
  write_tntidx(file, contents);
}

}  // namespace megatron

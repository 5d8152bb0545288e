#include "megatron/data/npy.h"

#include <fmt/format.h>

#include <charconv>
#include <cstring>
#include <limits>
#include <optional>

#include "megatron/core/error.h"

namespace megatron {
namespace {

constexpr std::string_view kNpyMagic{"\x93NUMPY", 6};
constexpr size_t kAlignment = 64;

// The text after `'key':` in numpy's dictionary, without leading blanks.
std::optional<std::string_view> value_of(std::string_view dictionary, std::string_view key) {
  for (const char quote : {'\'', '"'}) {
    const std::string quoted = quote + std::string(key) + quote;
    size_t at = dictionary.find(quoted);
    if (at == std::string_view::npos) continue;
    at = dictionary.find_first_not_of(' ', at + quoted.size());
    if (at == std::string_view::npos || dictionary[at] != ':') continue;
    at = dictionary.find_first_not_of(' ', at + 1);
    if (at != std::string_view::npos) return dictionary.substr(at);
  }
  return std::nullopt;
}

int64_t element_bytes(std::string_view descr) {
  const char size = descr.size() == 3 ? descr[2] : '0';
  return size == '1' || size == '2' || size == '4' || size == '8' ? size - '0' : 0;
}

}  // namespace

std::string npy_header(std::string_view descr, std::span<const int64_t> shape) {
  const std::string tuple = shape.size() == 1 ? fmt::format("({},)", shape[0])
                                              : fmt::format("({})", fmt::join(shape, ", "));
  std::string dictionary =
      fmt::format("{{'descr': '{}', 'fortran_order': False, 'shape': {}, }}", descr, tuple);
  // numpy leaves room for the first dimension to grow to 21 digits.
  if (!shape.empty()) {
    dictionary.append(21 - std::min<size_t>(21, fmt::format("{}", shape[0]).size()), ' ');
  }
  const size_t prefix = kNpyMagic.size() + 4;
  const size_t unpadded = prefix + dictionary.size() + 1;
  dictionary.append((kAlignment - unpadded % kAlignment) % kAlignment, ' ');
  dictionary.push_back('\n');

  std::string header(kNpyMagic);
  header += {'\1', '\0'};
  header += static_cast<char>(dictionary.size() & 0xff);
  header += static_cast<char>(dictionary.size() >> 8);
  return header + dictionary;
}

NpyFile::NpyFile(const std::filesystem::path& path) : file_(path) {
  const std::span<const std::byte> bytes = file_.bytes();
  const std::string_view text(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  const std::string name = path.string();
  if (!text.starts_with(kNpyMagic) || text.size() < 12) {
    throw FormatError(fmt::format(
        "{}: does not start with a numpy header; is this a .npy file? Delete it to rebuild it",
        name));
  }
  const int version = static_cast<unsigned char>(text[6]);
  if (version < 1 || version > 3) {
    throw FormatError(fmt::format("{}: numpy format version {} is not 1, 2 or 3", name, version));
  }
  const size_t length_bytes = version == 1 ? 2 : 4;
  uint32_t length = 0;
  std::memcpy(&length, text.data() + 8, length_bytes);
  const size_t start = 8 + length_bytes;
  if (length > text.size() - start) {
    throw FormatError(
        fmt::format("{}: has {} bytes, its header alone takes {}; delete the "
                    "truncated file to rebuild it",
                    name, text.size(), start + length));
  }
  parse_dictionary(text.substr(start, length));

  int64_t count = 1;
  for (const int64_t extent : shape_) {
    if (extent != 0 && count > std::numeric_limits<int64_t>::max() / 8 / extent) {
      throw FormatError(fmt::format("{}: shape ({}) is too large", name, fmt::join(shape_, ", ")));
    }
    count *= extent;
  }
  const int64_t want = count * element_bytes(descr_);
  const int64_t have = static_cast<int64_t>(text.size() - start - length);
  if (have < want) {
    throw FormatError(fmt::format(
        "{}: has {} bytes of data, but shape ({}) of {} takes {}; delete the truncated file to "
        "rebuild it",
        name, have, fmt::join(shape_, ", "), descr_, want));
  }
  data_ = bytes.subspan(start + length, static_cast<size_t>(want));
  if ((start + length) % static_cast<size_t>(element_bytes(descr_)) != 0) {
    realigned_.assign(data_.begin(), data_.end());
    data_ = realigned_;
  }
}

void NpyFile::parse_dictionary(std::string_view text) {
  const std::string name = path().string();
  const auto required = [&](std::string_view key) {
    const std::optional<std::string_view> value = value_of(text, key);
    if (!value) throw FormatError(fmt::format("{}: numpy header has no '{}'", name, key));
    return *value;
  };
  const std::string_view descr = required("descr");
  const size_t end = descr.size() > 1 ? descr.find(descr[0], 1) : std::string_view::npos;
  if ((descr[0] != '\'' && descr[0] != '"') || end == std::string_view::npos) {
    throw FormatError(fmt::format("{}: element type in the numpy header is not a name", name));
  }
  descr_ = std::string(descr.substr(1, end - 1));
  if (element_bytes(descr_) == 0 || descr_[0] == '>') {
    throw FormatError(
        fmt::format("{}: element type '{}' is not a little-endian number of 1, 2, 4 "
                    "or 8 bytes",
                    name, descr_));
  }
  if (!required("fortran_order").starts_with("False")) {
    throw FormatError(fmt::format("{}: array is in Fortran order, expected C order", name));
  }
  const std::string_view tuple = required("shape");
  const size_t close = tuple.find(')');
  if (tuple[0] != '(' || close == std::string_view::npos) {
    throw FormatError(fmt::format("{}: shape in the numpy header is not a tuple", name));
  }
  const char* at = tuple.data() + 1;
  const char* last = tuple.data() + close;
  while (at < last) {
    if (*at == ' ' || *at == ',') {
      ++at;
      continue;
    }
    int64_t extent = 0;
    const auto [next, error] = std::from_chars(at, last, extent);
    if (error != std::errc() || extent < 0) {
      throw FormatError(fmt::format("{}: shape {} in the numpy header is not a tuple of sizes",
                                    name, tuple.substr(0, close + 1)));
    }
    shape_.push_back(extent);
    at = next;
  }
}

std::span<const std::byte> NpyFile::typed_data(std::string_view descr) const {
  if (descr != descr_) {
    throw FormatError(fmt::format("{}: holds '{}', expected '{}'; delete the file to rebuild it",
                                  path().string(), descr_, descr));
  }
  return data_;
}

void write_npy(const std::filesystem::path& path, std::string_view descr,
               std::span<const int64_t> shape, std::span<const std::byte> bytes) {
  FileWriter file(path);
  file.write(npy_header(descr, shape));
  file.write(bytes);
  file.commit();
}

}  // namespace megatron

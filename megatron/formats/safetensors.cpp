#include "megatron/formats/safetensors.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cstring>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <utility>

#include "megatron/core/crc32c.h"
#include "megatron/core/error.h"
#include "megatron/core/json.h"
#include "megatron/core/printable.h"

namespace megatron {
namespace {

static_assert(std::endian::native == std::endian::little, "files are little-endian");

using nlohmann::json;

constexpr int64_t kSizeBytes = 8;  // the header's size
constexpr int64_t kMaxHeaderBytes = 100'000'000;
constexpr const char* kMetadataKey = "__metadata__";

struct DTypeName {
  const char* name;
  DType dtype;
};
constexpr DTypeName kDTypeNames[] = {
    {"F64", DType::kFloat64},
    {"I64", DType::kInt64},
    {"U64", DType::kUInt64},
    {"F32", DType::kFloat32},
    {"I32", DType::kInt32},
    {"U32", DType::kUInt32},
    {"BF16", DType::kBFloat16},
    {"F16", DType::kFloat16},
    {"I16", DType::kInt16},
    {"U16", DType::kUInt16},
    {"I8", DType::kInt8},
    {"U8", DType::kUInt8},
    {"BOOL", DType::kBool},
    {"F8_E4M3", DType::kFloat8E4M3},
    {"F8_E5M2", DType::kFloat8E5M2},
};
// Types of newer files that this program does not support.
constexpr std::string_view kForeignDTypes[] = {"F8_E8M0", "F8_E5M2FNUZ", "F8_E4M3FNUZ", "F6_E2M3",
                                               "F6_E3M2", "F4",          "C64"};

// One tensor from the header, not validated yet.
struct HeaderEntry {
  std::string name;
  std::optional<std::string> dtype;
  std::optional<std::vector<uint64_t>> shape;
  std::optional<std::vector<uint64_t>> offsets;
};

// Reads the header's events one by one and rejects the first invalid one, so that invalid input
// builds nothing, however deep it is.
class HeaderReader : public nlohmann::json_sax<json> {
 public:
  std::vector<HeaderEntry> entries;
  std::map<std::string, std::string> metadata;
  std::string problem;

  explicit HeaderReader(std::string_view text) : text_(text) {}

  bool null() override { return refuse("null"); }
  bool boolean(bool) override { return refuse("a boolean"); }
  bool number_integer(number_integer_t value) override {
    return refuse(fmt::format("the number {}", value));
  }
  bool number_float(number_float_t, const string_t& text) override {
    return refuse(fmt::format("the number {}", text));
  }
  bool binary(binary_t&) override { return refuse("binary data"); }

  bool number_unsigned(number_unsigned_t value) override {
    if (numbers_ == nullptr) return refuse(fmt::format("the number {}", value));
    if (numbers_->size() == Shape::kMaxDims) {
      return fail(fmt::format("tensor {} has a shape of more than {} extents",
                              shortened(entries.back().name), Shape::kMaxDims));
    }
    numbers_->push_back(value);
    return true;
  }
  bool string(string_t& value) override {
    if (place_ == Place::kMetadataValue) {
      metadata.emplace(key_, std::move(value));
      place_ = Place::kMetadata;
      return true;
    }
    if (place_ == Place::kField && key_ == "dtype") {
      entries.back().dtype = std::move(value);
      place_ = Place::kEntry;
      return true;
    }
    return refuse("a string");
  }

  bool start_object(size_t) override {
    if (place_ == Place::kOutside) {
      place_ = Place::kHeader;
    } else if (place_ == Place::kHeaderValue && key_ == kMetadataKey) {
      place_ = Place::kMetadata;
    } else if (place_ == Place::kHeaderValue) {
      entries.emplace_back().name = key_;
      place_ = Place::kEntry;
    } else {
      return refuse("an object");
    }
    return true;
  }
  bool key(string_t& name) override {
    key_ = std::move(name);
    switch (place_) {
      case Place::kHeader:
        place_ = Place::kHeaderValue;
        return names_.insert(key_).second || fail(fmt::format("{} occurs twice", shortened(key_)));
      case Place::kMetadata:
        place_ = Place::kMetadataValue;
        return !metadata.contains(key_) ||
               fail(fmt::format("{} occurs twice in {}", shortened(key_), kMetadataKey));
      default:
        place_ = Place::kField;
        return start_field();
    }
  }
  bool end_object() override {
    if (place_ == Place::kEntry) {
      const HeaderEntry& entry = entries.back();
      if (!entry.dtype || !entry.shape || !entry.offsets || entry.offsets->size() != 2) {
        return fail(fmt::format("tensor {} needs dtype, shape and two data_offsets",
                                shortened(entry.name)));
      }
    }
    place_ = place_ == Place::kHeader ? Place::kOutside : Place::kHeader;
    return true;
  }
  bool start_array(size_t) override {
    if (place_ != Place::kField || numbers_ != nullptr) return refuse("an array");
    HeaderEntry& entry = entries.back();
    if (key_ == "shape") numbers_ = &entry.shape.emplace();
    if (key_ == "data_offsets") numbers_ = &entry.offsets.emplace();
    return numbers_ != nullptr || refuse("an array");
  }
  bool end_array() override {
    numbers_ = nullptr;
    place_ = Place::kEntry;
    return true;
  }

  bool parse_error(size_t position, const std::string&, const json::exception&) override {
    return fail(json_problem(text_, position));
  }

 private:
  enum class Place { kOutside, kHeader, kHeaderValue, kMetadata, kMetadataValue, kEntry, kField };

  bool start_field() {
    const HeaderEntry& entry = entries.back();
    const bool known = key_ == "dtype" || key_ == "shape" || key_ == "data_offsets";
    if (!known)
      return fail(
          fmt::format("tensor {} has an unknown field {}", shortened(entry.name), shortened(key_)));
    const bool seen = (key_ == "dtype" && entry.dtype) || (key_ == "shape" && entry.shape) ||
                      (key_ == "data_offsets" && entry.offsets);
    return !seen || fail(fmt::format("tensor {} states {} twice", shortened(entry.name), key_));
  }
  bool refuse(const std::string& what) {
    return fail(place_ == Place::kOutside
                    ? fmt::format("{} where an object was expected", what)
                    : fmt::format("{} is not a value of {}", shortened(what), shortened(key_)));
  }
  bool fail(std::string text) {
    problem = std::move(text);
    return false;
  }

  std::string_view text_;
  Place place_ = Place::kOutside;
  std::string key_;
  std::vector<uint64_t>* numbers_ = nullptr;
  std::set<std::string> names_;
};

[[noreturn]] void fail(const std::filesystem::path& path, int64_t offset, std::string_view what) {
  throw FormatError(
      fmt::format("{}: safetensors, byte {}: {}; the file is damaged or incomplete, "
                  "copy it again from its source",
                  path.string(), offset, what));
}

DType dtype_named(const std::filesystem::path& path, const HeaderEntry& entry) {
  for (const DTypeName& known : kDTypeNames) {
    if (*entry.dtype == known.name) return known.dtype;
  }
  if (std::ranges::find(kForeignDTypes, *entry.dtype) != std::end(kForeignDTypes)) {
    throw Unsupported(
        fmt::format("{}: tensor {} has element type {}, which this program does not "
                    "read; store it as F32, BF16 or F16",
                    path.string(), shortened(entry.name), *entry.dtype));
  }
  fail(path, kSizeBytes,
       fmt::format("tensor {} has unknown dtype {}", shortened(entry.name),
                   shortened(*entry.dtype)));
}

// The tensor of an entry; checks that its offsets are inside a buffer of buffer_bytes.
SafetensorsFile::Entry checked(const std::filesystem::path& path, HeaderEntry& entry,
                               int64_t buffer_bytes) {
  SafetensorsFile::Entry tensor;
  tensor.spec.dtype = dtype_named(path, entry);
  const uint64_t begin = (*entry.offsets)[0];
  const uint64_t end = (*entry.offsets)[1];
  const auto limit = static_cast<uint64_t>(buffer_bytes);
  if (begin > end || end > limit) {
    fail(path, kSizeBytes,
         fmt::format("tensor {} lies at [{}, {}), outside the {} bytes of data",
                     shortened(entry.name), begin, end, buffer_bytes));
  }
  // The overflow check skips extents of 0; the product keeps them.
  auto magnitude = static_cast<uint64_t>(size_of(tensor.spec.dtype));
  bool is_empty = false;
  std::vector<int64_t> extents;
  for (const uint64_t extent : *entry.shape) {
    is_empty |= extent == 0;
    if (__builtin_mul_overflow(magnitude, std::max<uint64_t>(extent, 1), &magnitude) ||
        magnitude > static_cast<uint64_t>(INT64_MAX)) {
      fail(path, kSizeBytes,
           fmt::format("the extents of tensor {} overflow", shortened(entry.name)));
    }
    extents.push_back(static_cast<int64_t>(extent));
  }
  tensor.spec.shape = Shape(extents);
  const uint64_t bytes = is_empty ? 0 : magnitude;
  if (bytes != end - begin) {
    fail(path, kSizeBytes,
         fmt::format("tensor {} of type {} and shape {} takes {} bytes, but [{}, {}) has {}",
                     shortened(entry.name), *entry.dtype, tensor.spec.shape.str(), bytes, begin,
                     end, end - begin));
  }
  tensor.spec.name = std::move(entry.name);
  tensor.offset = static_cast<int64_t>(begin);
  return tensor;
}

HeaderReader read_header(const std::filesystem::path& path, std::string_view text) {
  if (text.empty() || text.front() != '{') fail(path, kSizeBytes, "the header is not an object");
  HeaderReader reader(text);
  if (!json::sax_parse(text.begin(), text.end(), &reader)) {
    fail(path, kSizeBytes, "header: " + reader.problem);
  }
  return reader;
}

std::string header_text(std::span<const TensorSpec> specs,
                        const std::map<std::string, std::string>& metadata) {
  nlohmann::ordered_json header = nlohmann::ordered_json::object();
  std::set<std::string_view> names;
  if (!metadata.empty()) header[kMetadataKey] = metadata;
  int64_t offset = 0;
  std::string text = header.dump();
  text.pop_back();
  for (const TensorSpec& spec : specs) {
    invariant(spec.name != kMetadataKey && names.insert(spec.name).second,
              "tensors written to one file have distinct names");
    const int64_t end = offset + spec.bytes();
    const nlohmann::ordered_json entry = {
        {"dtype", safetensors_name(spec.dtype)},
        {"shape", std::vector<int64_t>(spec.shape.dims().begin(), spec.shape.dims().end())},
        {"data_offsets", {offset, end}}};
    if (text.size() > 1) text += ',';
    text += json(spec.name).dump() + ':' + entry.dump();
    offset = end;
  }
  text += '}';
  while (text.size() % 8 != 0) text += ' ';  // aligns the data
  return text;
}

std::vector<TensorSpec> in_file_order(std::vector<TensorSpec> specs) {
  std::ranges::stable_sort(specs, std::ranges::greater{},
                           [](const TensorSpec& spec) { return size_of(spec.dtype); });
  return specs;
}

}  // namespace

SafetensorsFile::SafetensorsFile(const std::filesystem::path& path) : file_(path) {
  const std::span<const std::byte> bytes = file_.bytes();
  const auto file_bytes = static_cast<int64_t>(bytes.size());
  if (file_bytes < kSizeBytes) {
    fail(path, 0, fmt::format("a file of {} bytes has no header", file_bytes));
  }
  uint64_t header_bytes = 0;
  std::memcpy(&header_bytes, bytes.data(), sizeof(header_bytes));
  if (header_bytes > static_cast<uint64_t>(kMaxHeaderBytes) ||
      header_bytes > static_cast<uint64_t>(file_bytes - kSizeBytes)) {
    fail(path, 0,
         fmt::format("a header of {} bytes does not fit a file of {} (limit {}); is this a "
                     "safetensors file?",
                     header_bytes, file_bytes, kMaxHeaderBytes));
  }
  const int64_t data_begin = kSizeBytes + static_cast<int64_t>(header_bytes);
  const std::string_view text(reinterpret_cast<const char*>(bytes.data()) + kSizeBytes,
                              static_cast<size_t>(header_bytes));
  header_crc_ = crc32c(bytes.first(static_cast<size_t>(data_begin)));
  HeaderReader header = read_header(path, text);
  metadata_ = std::move(header.metadata);

  tensors_.reserve(header.entries.size());
  for (HeaderEntry& entry : header.entries) {
    tensors_.push_back(checked(path, entry, file_bytes - data_begin));
  }
  std::ranges::sort(tensors_, {}, [](const SafetensorsFile::Entry& tensor) {
    return std::pair(tensor.offset, tensor.spec.bytes());
  });
  int64_t end = 0;
  for (SafetensorsFile::Entry& tensor : tensors_) {
    if (tensor.offset != end) {
      fail(path, data_begin + std::min(end, tensor.offset),
           fmt::format("{} before tensor {}", tensor.offset > end ? "a hole" : "an overlap",
                       tensor.spec.name));
    }
    end += tensor.spec.bytes();
    tensor.offset += data_begin;
    tensor.view = {bytes.data() + tensor.offset, tensor.spec.shape, tensor.spec.dtype};
  }
  if (data_begin + end != file_bytes) {
    fail(path, data_begin + end,
         fmt::format("{} bytes after the last tensor", file_bytes - data_begin - end));
  }
  positions_.reserve(tensors_.size());
  for (size_t i = 0; i < tensors_.size(); ++i) positions_.emplace(tensors_[i].spec.name, i);
}

const SafetensorsFile::Entry* SafetensorsFile::find(std::string_view name) const {
  const auto found = positions_.find(name);
  return found == positions_.end() ? nullptr : &tensors_[found->second];
}

ConstView SafetensorsFile::at(std::string_view name) const {
  const SafetensorsFile::Entry* tensor = find(name);
  if (tensor == nullptr) {
    throw FormatError(fmt::format("{}: has no tensor {}; is this the file of another model?",
                                  path().string(), name));
  }
  return tensor->view;
}

SafetensorsWriter::SafetensorsWriter(std::filesystem::path path, std::vector<TensorSpec> specs,
                                     const std::map<std::string, std::string>& metadata)
    : specs_(in_file_order(std::move(specs))), file_(std::move(path)) {
  const std::string header = header_text(specs_, metadata);
  const auto size = static_cast<uint64_t>(header.size());
  const auto size_bytes = std::as_bytes(std::span(&size, 1));
  header_crc_ = crc32c(std::as_bytes(std::span(header)), crc32c(size_bytes));
  file_bytes_ = kSizeBytes + static_cast<int64_t>(header.size());
  for (const TensorSpec& spec : specs_) file_bytes_ += spec.bytes();
  file_.write(size_bytes);
  file_.write(header);
}

void SafetensorsWriter::write_later(FileElements elements) {
  invariant(next_ < specs_.size(), "each tensor is written once");
  const TensorSpec& spec = specs_[next_];
  expect_shape(elements.view.shape, spec.shape, spec.name.c_str());
  expect_dtype(elements.view.dtype, spec.dtype, spec.name.c_str());
  ++next_;
  behind_.push(spec.bytes(),
               [this, elements = std::move(elements)] { file_.write(bytes_of(elements.view)); });
}

void SafetensorsWriter::write(ConstView elements) {
  write_later(FileElements{elements});
  behind_.finish();
}

void SafetensorsWriter::commit() {
  invariant(next_ == specs_.size(), "every announced tensor is written before commit");
  behind_.finish();
  file_.commit();
}

std::string_view safetensors_name(DType dtype) {
  for (const DTypeName& known : kDTypeNames) {
    if (known.dtype == dtype) return known.name;
  }
  throw InternalError("a dtype has no safetensors name");
}

std::span<const std::byte> bytes_of(ConstView view) {
  return {static_cast<const std::byte*>(view.data), static_cast<size_t>(view.bytes())};
}

Tensor copy_of(ConstView view) {
  Tensor copy(view.shape, view.dtype, Stream{});
  if (view.bytes() > 0) {
    std::memcpy(copy.view().data, view.data, static_cast<size_t>(view.bytes()));
  }
  return copy;
}

}  // namespace megatron

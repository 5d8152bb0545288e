#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include "megatron/core/file.h"

namespace megatron {

// numpy's name of a little-endian element type, as in the header of a .npy file.
template <class T>
constexpr std::string_view npy_descr() {
  if constexpr (std::is_same_v<T, uint8_t>) return "|u1";
  if constexpr (std::is_same_v<T, int16_t>) return "<i2";
  if constexpr (std::is_same_v<T, int32_t>) return "<i4";
  if constexpr (std::is_same_v<T, uint32_t>) return "<u4";
  if constexpr (std::is_same_v<T, int64_t>) return "<i8";
  if constexpr (std::is_same_v<T, uint64_t>) return "<u8";
}

// The header that numpy.save writes before C-order data of this type and shape.
std::string npy_header(std::string_view descr, std::span<const int64_t> shape);

// A .npy file mapped into memory: format 1.0, 2.0 or 3.0, C order.
class NpyFile {
 public:
  // Throws IoError; FormatError for truncated and other files.
  explicit NpyFile(const std::filesystem::path& path);

  const std::filesystem::path& path() const { return file_.path(); }
  const std::string& descr() const { return descr_; }
  const std::vector<int64_t>& shape() const { return shape_; }
  // All elements. Throws FormatError if the file holds another type.
  template <class T>
  std::span<const T> values() const {
    const std::span<const std::byte> bytes = typed_data(npy_descr<T>());
    return {reinterpret_cast<const T*>(bytes.data()), bytes.size() / sizeof(T)};
  }

 private:
  void parse_dictionary(std::string_view text);
  std::span<const std::byte> typed_data(std::string_view descr) const;

  MappedFile file_;
  std::string descr_;
  std::vector<int64_t> shape_;
  std::vector<std::byte> realigned_;  // a copy of the data if the header has an odd size
  std::span<const std::byte> data_;
};

// Writes the same file as numpy.save, atomically. REQUIRES: bytes holds the elements of `shape`.
void write_npy(const std::filesystem::path& path, std::string_view descr,
               std::span<const int64_t> shape, std::span<const std::byte> bytes);

// An array in memory or in a mapped .npy file. Copies share the data.
template <class T>
class NpyArray {
 public:
  NpyArray() = default;
  // REQUIRES: values.size() is the product of the shape.
  NpyArray(std::vector<T> values, std::vector<int64_t> shape) : shape_(std::move(shape)) {
    auto owned = std::make_shared<const std::vector<T>>(std::move(values));
    values_ = *owned;
    owner_ = std::move(owned);
  }
  explicit NpyArray(NpyFile file) : shape_(file.shape()) {
    auto owned = std::make_shared<const NpyFile>(std::move(file));
    values_ = owned->template values<T>();
    owner_ = std::move(owned);
  }

  std::span<const T> values() const { return values_; }
  const std::vector<int64_t>& shape() const { return shape_; }
  int64_t size() const { return static_cast<int64_t>(values_.size()); }
  bool empty() const { return values_.empty(); }
  // REQUIRES: 0 <= i < size().
  T operator[](int64_t i) const { return values_[static_cast<size_t>(i)]; }
  void save(const std::filesystem::path& path) const {
    write_npy(path, npy_descr<T>(), shape_, std::as_bytes(values_));
  }

 private:
  std::vector<int64_t> shape_;
  std::span<const T> values_;
  std::shared_ptr<const void> owner_;
};

}  // namespace megatron

#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "annex/retro/data/hdf5_file.h"
#include "megatron/core/file.h"

namespace megatron {

// The rows of a two-dimensional array of an HDF5 file: mapped into memory where its layout allows
// that, otherwise read. An array of shape [0] has no rows.
template <class T>
class MappedRows {
 public:
  MappedRows() = default;
  // Throws IoError, FormatError.
  MappedRows(const std::filesystem::path& path, const std::string& name) {
    const Hdf5File file(path);
    const std::vector<int64_t> shape = file.shape(name);
    columns_ = shape.size() == 2 ? shape[1] : 0;
    const int64_t size = shape.empty() ? 0 : shape[0] * columns_;
    const std::optional<int64_t> offset = file.offset_of<T>(name);
    auto mapped = std::make_shared<const MappedFile>(path);
    const auto bytes = static_cast<int64_t>(mapped->bytes().size());
    const auto needed = size * static_cast<int64_t>(sizeof(T));
    if (offset && *offset % static_cast<int64_t>(alignof(T)) == 0 && needed <= bytes - *offset) {
      const auto* const first = mapped->bytes().data() + *offset;
      values_ = {reinterpret_cast<const T*>(first), static_cast<size_t>(size)};
      owner_ = std::move(mapped);
      return;
    }
    auto read = std::make_shared<const std::vector<T>>(file.read<T>(name));
    values_ = {read->data(), static_cast<size_t>(size)};
    owner_ = std::move(read);
  }

  int64_t columns() const { return columns_; }
  int64_t count() const {
    return columns_ == 0 ? 0 : static_cast<int64_t>(values_.size()) / columns_;
  }
  // REQUIRES: 0 <= row < count().
  std::span<const T> operator[](int64_t row) const {
    return values_.subspan(static_cast<size_t>(row * columns_), static_cast<size_t>(columns_));
  }
  std::span<const T> values() const { return values_; }

 private:
  int64_t columns_ = 0;
  std::span<const T> values_;
  std::shared_ptr<const void> owner_;
};

}  // namespace megatron

#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <type_traits>
#include <vector>

#include "megatron/core/file.h"

namespace megatron {

// Element types of datasets in HDF5 files, little-endian.
enum class Hdf5Type { kUint8, kUint32, kUint64, kInt64, kFloat32 };

template <class T>
constexpr Hdf5Type hdf5_type() {
  if constexpr (std::is_same_v<T, uint8_t>) return Hdf5Type::kUint8;
  if constexpr (std::is_same_v<T, uint32_t>) return Hdf5Type::kUint32;
  if constexpr (std::is_same_v<T, uint64_t>) return Hdf5Type::kUint64;
  if constexpr (std::is_same_v<T, int64_t>) return Hdf5Type::kInt64;
  if constexpr (std::is_same_v<T, float>) return Hdf5Type::kFloat32;
}

// Reads arrays of Retro's HDF5 files, as h5py writes them: datasets of the root group. HDF5's
// library crashes on some damaged files, so it runs in child processes (core/read_in_child.h): for
// the list of arrays, and for arrays whose elements are not stored contiguously and unconverted.
// Thread safe. In a build without MG_RETRO the constructors throw Unsupported.
class Hdf5File {
 public:
  // Throws IoError if the file is missing, FormatError if it is not a complete HDF5 file.
  explicit Hdf5File(std::filesystem::path path);

  const std::filesystem::path& path() const { return path_; }
  // The shape of an array; empty if the file has none of this name.
  std::optional<std::vector<int64_t>> find(const std::string& name) const;
  // The same; throws FormatError if there is none.
  std::vector<int64_t> shape(const std::string& name) const;

  // All elements, or `count` rows from row `begin` on, converted to T. Throws FormatError if there
  // is no such array, or no such rows.
  template <class T>
  std::vector<T> read(const std::string& name) const {
    const std::vector<int64_t> sizes = shape(name);
    return read_rows<T>(name, 0, sizes.empty() ? 0 : sizes[0]);
  }
  template <class T>
  std::vector<T> read_rows(const std::string& name, int64_t begin, int64_t count) const {
    const std::string bytes = read_bytes(name, begin, count, hdf5_type<T>());
    std::vector<T> values(bytes.size() / sizeof(T));
    if (!bytes.empty()) std::memcpy(values.data(), bytes.data(), bytes.size());
    return values;
  }

  // The file offset of the elements if they are contiguous little-endian T, so that they can be
  // mapped into memory; otherwise empty.
  template <class T>
  std::optional<int64_t> offset_of(const std::string& name) const {
    return offset_if(name, hdf5_type<T>());
  }

 private:
  // Properties of an array, from the library.
  struct Array {
    std::vector<int64_t> shape;
    std::optional<Hdf5Type> type;   // empty: another type, which is converted on reading
    std::optional<int64_t> offset;  // of the elements in the file, if contiguous
  };
  const Array& array(const std::string& name) const;
  std::map<std::string, Array> read_arrays() const;
  // The bytes of the rows. Throws as read_rows().
  std::string read_bytes(const std::string& name, int64_t begin, int64_t count,
                         Hdf5Type type) const;
  std::optional<int64_t> offset_if(const std::string& name, Hdf5Type type) const;

  std::filesystem::path path_;
  MappedFile file_;
  std::map<std::string, Array> arrays_;
};

// Writes an HDF5 file: contiguous arrays without compression and time stamps, so that the same
// arrays give the same bytes. Keeps the file in memory until commit().
class Hdf5Writer {
 public:
  explicit Hdf5Writer(std::filesystem::path path);
  ~Hdf5Writer();
  Hdf5Writer(const Hdf5Writer&) = delete;
  Hdf5Writer& operator=(const Hdf5Writer&) = delete;

  // REQUIRES: values.size() is the product of the shape.
  template <class T>
  void add(const std::string& name, std::span<const T> values, std::vector<int64_t> shape) {
    add_array(name, hdf5_type<T>(), values.data(), static_cast<int64_t>(values.size()), shape);
  }
  // Throws IoError. REQUIRES: it is the last call.
  void commit();

 private:
  void add_array(const std::string& name, Hdf5Type type, const void* values, int64_t count,
                 const std::vector<int64_t>& shape);

  std::filesystem::path path_;
  int64_t handle_ = -1;
};

}  // namespace megatron

#include "annex/retro/data/hdf5_file.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <hdf5.h>

#include <algorithm>
#include <bit>
#include <cstring>
#include <mutex>
#include <span>
#include <sstream>
#include <utility>

#include "megatron/core/checked.h"
#include "megatron/core/error.h"
#include "megatron/core/file.h"
#include "megatron/core/read_in_child.h"
#include "megatron/device/lazy_library.h"

namespace megatron {
namespace {

static_assert(std::is_same_v<hid_t, int64_t>, "handles are kept as int64_t");
static_assert(std::endian::native == std::endian::little, "elements are not swapped");

// H5F_ACC_RDONLY and H5F_ACC_TRUNC, which are calls of the library.
constexpr unsigned kReadOnly = 0;
constexpr unsigned kTruncate = 2;

// The functions of HDF5 that are used here. The library is not thread safe: hold `mutex`.
struct Library {
  LazyLibrary file{MG_HDF5_FILE, "install the package that has it (libhdf5-dev)"};
#define MG_HDF5(name) decltype(&::name) name = file.function<decltype(&::name)>(#name)
  MG_HDF5(H5open);
  MG_HDF5(H5Eset_auto2);
  MG_HDF5(H5Fopen);
  MG_HDF5(H5Fcreate);
  MG_HDF5(H5Fflush);
  MG_HDF5(H5Fget_file_image);
  MG_HDF5(H5Fclose);
  MG_HDF5(H5Gget_info);
  MG_HDF5(H5Lget_name_by_idx);
  MG_HDF5(H5Pcreate);
  MG_HDF5(H5Pset_fapl_core);
  MG_HDF5(H5Pset_obj_track_times);
  MG_HDF5(H5Pclose);
  MG_HDF5(H5Screate_simple);
  MG_HDF5(H5Sget_simple_extent_ndims);
  MG_HDF5(H5Sget_simple_extent_dims);
  MG_HDF5(H5Sselect_hyperslab);
  MG_HDF5(H5Sclose);
  MG_HDF5(H5Dcreate2);
  MG_HDF5(H5Dopen2);
  MG_HDF5(H5Dget_space);
  MG_HDF5(H5Dget_type);
  MG_HDF5(H5Dget_offset);
  MG_HDF5(H5Dread);
  MG_HDF5(H5Dwrite);
  MG_HDF5(H5Dclose);
  MG_HDF5(H5Tequal);
  MG_HDF5(H5Tclose);
#undef MG_HDF5
  std::mutex mutex;

  Library() { H5open(); }
  hid_t id(const char* name) const { return *file.function<const hid_t*>(name); }
  hid_t type(Hdf5Type type) const {
    switch (type) {
      case Hdf5Type::kUint8:
        return id("H5T_STD_U8LE_g");
      case Hdf5Type::kUint32:
        return id("H5T_STD_U32LE_g");
      case Hdf5Type::kUint64:
        return id("H5T_STD_U64LE_g");
      case Hdf5Type::kInt64:
        return id("H5T_STD_I64LE_g");
      case Hdf5Type::kFloat32:
        return id("H5T_IEEE_F32LE_g");
    }
    throw InternalError("Hdf5Type out of range");
  }
};

// The library, for one thread at a time.
class Turn {
 public:
  Turn() : library_(library()), lock_(library_.mutex) {
    // Errors are exceptions here. The library keeps this setting for each thread.
    library_.H5Eset_auto2(H5E_DEFAULT, nullptr, nullptr);
  }
  const Library* operator->() const { return &library_; }
  const Library& operator*() const { return library_; }

 private:
  static Library& library() {
    static Library loaded;
    return loaded;
  }

  Library& library_;
  std::scoped_lock<std::mutex> lock_;
};

// A handle, closed on scope exit.
class Handle {
 public:
  Handle(hid_t id, herr_t (*close)(hid_t)) : id_(id), close_(close) {}
  ~Handle() {
    if (id_ >= 0) close_(id_);
  }
  Handle(const Handle&) = delete;
  Handle& operator=(const Handle&) = delete;
  operator hid_t() const { return id_; }  // NOLINT(google-explicit-constructor): HDF5's argument

 private:
  hid_t id_;
  herr_t (*close_)(hid_t);
};

std::vector<int64_t> shape_of(const Library& hdf5, hid_t array) {
  const Handle space(hdf5.H5Dget_space(array), hdf5.H5Sclose);
  const int axes = hdf5.H5Sget_simple_extent_ndims(space);
  std::vector<hsize_t> sizes(static_cast<size_t>(std::max(axes, 0)));
  if (axes > 0) hdf5.H5Sget_simple_extent_dims(space, sizes.data(), nullptr);
  return {sizes.begin(), sizes.end()};
}

constexpr Hdf5Type kTypes[] = {Hdf5Type::kUint8, Hdf5Type::kUint32, Hdf5Type::kUint64,
                               Hdf5Type::kInt64, Hdf5Type::kFloat32};

int64_t bytes_of(Hdf5Type type) {
  switch (type) {
    case Hdf5Type::kUint8:
      return 1;
    case Hdf5Type::kUint32:
    case Hdf5Type::kFloat32:
      return 4;
    case Hdf5Type::kUint64:
    case Hdf5Type::kInt64:
      return 8;
  }
  throw InternalError("Hdf5Type out of range");
}

constexpr int64_t kMaxBytes = 8;  // of an element

// The size in bytes of an array with the largest element type; -1 on overflow.
int64_t byte_count(const std::vector<int64_t>& shape) {
  int64_t bytes = kMaxBytes;
  for (const int64_t size : shape) {
    if (size < 0 || __builtin_mul_overflow(bytes, size, &bytes)) return -1;
  }
  return bytes;
}

// For a child process. Throws FormatError.
hid_t opened(const Library& hdf5, const std::filesystem::path& path) {
  const hid_t file = hdf5.H5Fopen(path.c_str(), kReadOnly, H5P_DEFAULT);
  if (file < 0) {
    throw FormatError(fmt::format(
        "{}: is not a complete HDF5 file; delete it, so that it is made again", path.string()));
  }
  return file;
}

// "NAME\0TYPE OFFSET AXES SIZE ...\0" for an array of the file; -1: no such type or offset.
std::string described(const Library& hdf5, hid_t file, const std::string& name) {
  const Handle array(hdf5.H5Dopen2(file, name.c_str(), H5P_DEFAULT), hdf5.H5Dclose);
  if (array < 0) return {};  // a group, or damaged
  const Handle stored(hdf5.H5Dget_type(array), hdf5.H5Tclose);
  int64_t type = -1;
  for (const Hdf5Type known : kTypes) {
    if (hdf5.H5Tequal(stored, hdf5.type(known)) > 0) type = static_cast<int64_t>(known);
  }
  const haddr_t offset = hdf5.H5Dget_offset(array);  // undefined unless the array is one piece
  const std::vector<int64_t> shape = shape_of(hdf5, array);
  std::string text = name;
  text += '\0';
  text +=
      fmt::format("{} {} {} {}", type, offset == HADDR_UNDEF ? -1 : static_cast<int64_t>(offset),
                  shape.size(), fmt::join(shape, " "));
  text += '\0';
  return text;
}

[[noreturn]] void no_array(const std::filesystem::path& path, const std::string& name) {
  throw FormatError(
      fmt::format("{}: has no array \"{}\" that can be read; delete the file, so that it is made "
                  "again",
                  path.string(), name));
}

}  // namespace

Hdf5File::Hdf5File(std::filesystem::path path)
    : path_(std::move(path)), file_(path_), arrays_(read_arrays()) {}

std::map<std::string, Hdf5File::Array> Hdf5File::read_arrays() const {
  const Turn hdf5;
  const std::string list = read_in_child(path_, "HDF5", [&] {
    const hid_t file = opened(*hdf5, path_);
    H5G_info_t group{};
    hdf5->H5Gget_info(file, &group);
    std::string text;
    for (hsize_t i = 0; i < group.nlinks; ++i) {
      char name[256] = {};
      const ssize_t length = hdf5->H5Lget_name_by_idx(file, ".", H5_INDEX_NAME, H5_ITER_INC, i,
                                                      name, sizeof(name), H5P_DEFAULT);
      if (length > 0 && length < static_cast<ssize_t>(sizeof(name))) {
        text += described(*hdf5, file, name);
      }
    }
    return text;
  });
  std::map<std::string, Array> arrays;
  for (size_t at = 0; at < list.size();) {
    const std::string name = list.c_str() + at;
    std::istringstream numbers(list.c_str() + at + name.size() + 1);
    int64_t type = -1;
    int64_t offset = -1;
    size_t axes = 0;
    numbers >> type >> offset >> axes;
    Array& array = arrays[name];
    for (int64_t size = 0; array.shape.size() < axes && numbers >> size;) {
      array.shape.push_back(size);
    }
    if (type >= 0) array.type = kTypes[static_cast<size_t>(type)];
    if (offset >= 0) array.offset = offset;
    at += name.size() + 1;
    at += std::strlen(list.c_str() + at) + 1;
  }
  // The library does not compare sizes with the file.
  std::erase_if(arrays, [](const auto& named) { return byte_count(named.second.shape) < 0; });
  for (auto& [name, array] : arrays) {
    if (!array.offset || !array.type) continue;
    const int64_t bytes = byte_count(array.shape) / kMaxBytes * bytes_of(*array.type);
    const auto available = static_cast<int64_t>(file_.bytes().size()) - *array.offset;
    if (array.shape.empty() || bytes > available) array.offset.reset();
  }
  return arrays;
}

const Hdf5File::Array& Hdf5File::array(const std::string& name) const {
  const auto found = arrays_.find(name);
  if (found == arrays_.end()) no_array(path_, name);
  return found->second;
}

std::optional<std::vector<int64_t>> Hdf5File::find(const std::string& name) const {
  const auto found = arrays_.find(name);
  if (found == arrays_.end()) return std::nullopt;
  return found->second.shape;
}

std::vector<int64_t> Hdf5File::shape(const std::string& name) const { return array(name).shape; }

std::optional<int64_t> Hdf5File::offset_if(const std::string& name, Hdf5Type type) const {
  const Array& found = array(name);
  return found.type == type ? found.offset : std::nullopt;
}

std::string Hdf5File::read_bytes(const std::string& name, int64_t begin, int64_t count,
                                 Hdf5Type type) const {
  std::vector<int64_t> sizes = shape(name);
  if (sizes.empty()) no_array(path_, name);
  if (begin < 0 || count < 0 || begin > sizes[0] || count > sizes[0] - begin) {
    throw FormatError(fmt::format("{}: {} rows of \"{}\" from row {} on are not in its {} rows",
                                  path_.string(), count, name, begin, sizes[0]));
  }
  sizes[0] = count;
  const int64_t size = byte_count(sizes) / kMaxBytes * bytes_of(type);
  if (size == 0) return {};
  if (const std::optional<int64_t> offset = offset_if(name, type)) {
    const char* const bytes = reinterpret_cast<const char*>(file_.bytes().data()) + *offset;
    return {bytes + begin * (size / count), static_cast<size_t>(size)};
  }
  const Turn hdf5;
  std::string rows = read_in_child(path_, "HDF5", [&] {
    const Handle array(hdf5->H5Dopen2(opened(*hdf5, path_), name.c_str(), H5P_DEFAULT),
                       hdf5->H5Dclose);
    const Handle space(hdf5->H5Dget_space(array), hdf5->H5Sclose);
    std::vector<hsize_t> first(sizes.size(), 0);
    first[0] = static_cast<hsize_t>(begin);
    const std::vector<hsize_t> part(sizes.begin(), sizes.end());
    const Handle memory(hdf5->H5Screate_simple(static_cast<int>(part.size()), part.data(), nullptr),
                        hdf5->H5Sclose);
    hdf5->H5Sselect_hyperslab(space, H5S_SELECT_SET, first.data(), nullptr, part.data(), nullptr);
    std::string bytes(static_cast<size_t>(size), '\0');
    if (hdf5->H5Dread(array, hdf5->type(type), memory, space, H5P_DEFAULT, bytes.data()) < 0) {
      no_array(path_, name);
    }
    return bytes;
  });
  if (static_cast<int64_t>(rows.size()) != size) no_array(path_, name);
  return rows;
}

Hdf5Writer::Hdf5Writer(std::filesystem::path path) : path_(std::move(path)) {
  constexpr size_t kGrowth = size_t{1} << 20;
  const Turn hdf5;
  const Handle access(hdf5->H5Pcreate(hdf5->id("H5P_CLS_FILE_ACCESS_ID_g")), hdf5->H5Pclose);
  hdf5->H5Pset_fapl_core(access, kGrowth, false);
  const std::string name = path_.string() + ".in-memory";  // the file itself may be open
  handle_ = hdf5->H5Fcreate(name.c_str(), kTruncate, H5P_DEFAULT, access);
  if (handle_ < 0) throw IoError(path_.string() + ": HDF5 cannot make the file in memory");
}

Hdf5Writer::~Hdf5Writer() {
  const Turn hdf5;
  if (handle_ >= 0) hdf5->H5Fclose(handle_);
}

void Hdf5Writer::add_array(const std::string& name, Hdf5Type type, const void* values,
                           int64_t count, const std::vector<int64_t>& shape) {
  invariant(count == checked_product(shape, name), "the shape has as many elements as values");
  const Turn hdf5;
  const std::vector<hsize_t> sizes(shape.begin(), shape.end());
  const Handle space(hdf5->H5Screate_simple(static_cast<int>(sizes.size()), sizes.data(), nullptr),
                     hdf5->H5Sclose);
  const Handle settings(hdf5->H5Pcreate(hdf5->id("H5P_CLS_DATASET_CREATE_ID_g")), hdf5->H5Pclose);
  hdf5->H5Pset_obj_track_times(settings, false);
  const Handle array(hdf5->H5Dcreate2(handle_, name.c_str(), hdf5->type(type), space, H5P_DEFAULT,
                                      settings, H5P_DEFAULT),
                     hdf5->H5Dclose);
  const bool is_written =
      array >= 0 && (count == 0 || hdf5->H5Dwrite(array, hdf5->type(type), H5S_ALL, H5S_ALL,
                                                  H5P_DEFAULT, values) >= 0);
  if (!is_written) {
    throw IoError(
        fmt::format("{}: HDF5 cannot add the array \"{}\" of shape [{}]; is memory short?",
                    path_.string(), name, fmt::join(shape, ", ")));
  }
}

void Hdf5Writer::commit() {
  std::vector<std::byte> image;
  {
    const Turn hdf5;
    hdf5->H5Fflush(handle_, H5F_SCOPE_GLOBAL);
    const ssize_t size = hdf5->H5Fget_file_image(handle_, nullptr, 0);
    image.resize(static_cast<size_t>(std::max<ssize_t>(size, 0)));
    if (size <= 0 || hdf5->H5Fget_file_image(handle_, image.data(), image.size()) != size) {
      throw IoError(path_.string() + ": HDF5 cannot give the bytes of the file");
    }
    hdf5->H5Fclose(std::exchange(handle_, -1));
  }
  FileWriter file(path_);
  file.write(image);
  file.commit();
}

}  // namespace megatron

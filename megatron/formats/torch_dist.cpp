#include "megatron/formats/torch_dist.h"

#include <fmt/format.h>

#include <algorithm>
#include <string_view>
#include <utility>

#include "megatron/core/error.h"
#include "megatron/formats/pickle.h"

namespace megatron {
namespace {

namespace fs = std::filesystem;

using Offset = std::vector<int64_t>;

// Larger than that of any real checkpoint.
constexpr size_t kMaxMetadata = size_t{1} << 30;
constexpr const char* kRemedy = "the checkpoint is damaged, copy the whole directory again";

// A tuple of sizes or offsets; nothing for other values.
std::optional<Offset> numbers_in(const PyValue* value) {
  if (value == nullptr || !value->is_list() || value->items().size() > Shape::kMaxDims) {
    return std::nullopt;
  }
  Offset numbers;
  for (const PyValue item : value->items()) {
    const auto number = item.integer();
    if (!number || *number < 0) return std::nullopt;
    numbers.push_back(*number);
  }
  return numbers;
}

// The number of elements; none if it overflows.
std::optional<int64_t> numel_of(const Offset& sizes) {
  int64_t numel = 1;
  for (const int64_t size : sizes) {
    if (__builtin_mul_overflow(numel, size, &numel)) return std::nullopt;
  }
  return numel;
}

bool is_of_type(PyValue value, std::string_view name) {
  const PyObject* object = value.object();
  return object != nullptr && std::string_view(object->type).ends_with(name);
}

// The properties pickle themselves as a tuple that begins with the dtype.
std::optional<DType> dtype_in(const PyValue* properties) {
  const PyObject* object = properties != nullptr ? properties->object() : nullptr;
  if (object == nullptr) return std::nullopt;
  if (const PyValue* dtype = properties->find("dtype")) return dtype->dtype();
  const auto parts = object->state.items();
  return parts.empty() ? std::nullopt : parts[0].dtype();
}

}  // namespace

class TorchDistDirectory::Parser {
 public:
  explicit Parser(TorchDistDirectory& target)
      : target_(target), path_(target.directory_ / kTorchDistMetadata) {}

  void parse() {
    if (!fs::exists(path_)) fail("is missing");
    const MappedFile file(path_);
    if (file.bytes().size() > kMaxMetadata) {
      fail(fmt::format("has {} bytes, the limit is {}", file.bytes().size(), kMaxMetadata));
    }
    PyDocument document;
    PyValue root;
    try {
      root = unpickle(file.bytes(), document).value;
    } catch (const FormatError& error) {
      fail(error.what());
    }
    const PyValue* entries = root.find("state_dict_metadata");
    const PyValue* places = root.find("storage_data");
    if (entries == nullptr || !entries->is_dict() || places == nullptr || !places->is_dict()) {
      fail("holds no Metadata of torch.distributed.checkpoint");
    }
    read_places(*places);
    for (const auto& [key, value] : entries->entries()) {
      const std::string name(key.text().value_or(""));
      if (is_of_type(value, "BytesStorageMetadata")) {
        target_.index_.objects[name] = place_of(name, {});
      } else if (is_of_type(value, "TensorStorageMetadata")) {
        target_.index_.tensors[name] = tensor_of(name, value);
      } else {
        fail(fmt::format("says that {} is {}", name, value.description()));
      }
    }
  }

 private:
  [[noreturn]] void fail(const std::string& what) const {
    throw FormatError(fmt::format("{}: {}; {}", path_.string(), what, kRemedy));
  }

  void read_places(PyValue places) {
    for (const auto& [index, info] : places.entries()) {
      const PyValue* name = index.find("fqn");
      const PyValue* offset = index.find("offset");
      const auto text = name != nullptr ? name->text() : std::nullopt;
      const bool is_whole = offset == nullptr || offset->is_none();
      const auto numbers = is_whole ? std::optional(Offset()) : numbers_in(offset);
      if (!text || !numbers) fail("has a place for something without a name");
      places_[{std::string(*text), *numbers}] = info;
    }
  }

  TorchDistIndex::Place place_of(const std::string& name, const Offset& offset) {
    const auto found = places_.find({name, offset});
    if (found == places_.end()) fail(fmt::format("says no place for a piece of {}", name));
    const PyValue info = found->second;
    const PyValue* file = info.find("relative_path");
    const PyValue* begin = info.find("offset");
    const PyValue* bytes = info.find("length");
    const PyValue* transforms = info.find("transform_descriptors");
    if (transforms != nullptr && !transforms->items().empty()) {
      throw Unsupported(fmt::format(
          "{}: pieces of {} are compressed, which this program does not read; save them without",
          path_.string(), name));
    }
    const auto text = file != nullptr ? file->text() : std::nullopt;
    const auto first = begin != nullptr ? begin->integer() : std::nullopt;
    const auto count = bytes != nullptr ? bytes->integer() : std::nullopt;
    if (!text || !first || !count || *first < 0 || *count < 0) {
      fail(fmt::format("says no place for a piece of {}", name));
    }
    TorchDistIndex::Place place{std::string(*text), *first, *count};
    const MappedFile& mapped = opened(place.file);
    const auto size = static_cast<int64_t>(mapped.bytes().size());
    if (place.begin > size || place.bytes > size - place.begin) {
      throw FormatError(fmt::format(
          "{}: has {} bytes, but a piece of {} lies at {} and has {}; the file is cut off, copy it "
          "again",
          mapped.path().string(), size, name, place.begin, place.bytes));
    }
    return place;
  }

  const MappedFile& opened(const std::string& name) {
    std::shared_ptr<const MappedFile>& file = target_.files_[name];
    if (file != nullptr) return *file;
    if (name.empty() || name == "." || name == ".." || name.find('/') != std::string::npos ||
        name.find('\0') != std::string::npos) {
      fail(fmt::format("names the file \"{}\", which is not in the directory", name));
    }
    const fs::path path = target_.directory_ / name;
    if (!fs::exists(path)) {
      throw FormatError(fmt::format("{}: is missing, but {} names it; copy the whole directory",
                                    path.string(), kTorchDistMetadata));
    }
    file = std::make_shared<const MappedFile>(path);
    return *file;
  }

  TorchDistIndex::Tensor tensor_of(const std::string& name, PyValue value) {
    const auto sizes = numbers_in(value.find("size"));
    const PyValue* chunks = value.find("chunks");
    if (!sizes || !numel_of(*sizes) || chunks == nullptr) {
      fail(fmt::format("says no size for {}", name));
    }
    TorchDistIndex::Tensor tensor;
    tensor.shape = Shape(*sizes);
    tensor.dtype = dtype_in(value.find("properties"));
    std::map<Offset, bool> seen;
    for (const PyValue chunk : chunks->items()) {
      const auto offset = numbers_in(chunk.find("offsets"));
      const auto shape = numbers_in(chunk.find("sizes"));
      bool is_inside = offset && shape && offset->size() == sizes->size() &&
                       shape->size() == sizes->size() && numel_of(*shape);
      for (size_t axis = 0; is_inside && axis < sizes->size(); ++axis) {
        is_inside =
            (*offset)[axis] <= (*sizes)[axis] && (*shape)[axis] <= (*sizes)[axis] - (*offset)[axis];
      }
      if (!is_inside) fail(fmt::format("says that a piece of {} is outside of it", name));
      if (!seen.emplace(*offset, true).second) continue;  // another rank's copy
      const TorchDistIndex::Place place = place_of(name, *offset);
      // Checked before memory is allocated for them.
      const int64_t element = tensor.dtype ? size_of(*tensor.dtype) : 1;
      if (*numel_of(*shape) > place.bytes / element) {
        fail(fmt::format("says that {} bytes hold a piece {} of {}", place.bytes,
                         Shape(*shape).str(), name));
      }
      tensor.pieces.push_back({{*offset, Shape(*shape)}, place});
    }
    return tensor;
  }

  TorchDistDirectory& target_;
  fs::path path_;
  std::map<std::pair<std::string, Offset>, PyValue> places_;
};

TorchDistDirectory::TorchDistDirectory(const fs::path& directory) : directory_(directory) {
  Parser(*this).parse();
}

TorchFile TorchDistDirectory::open(const TorchDistIndex::Place& place) const {
  const std::shared_ptr<const MappedFile>& file = files_.at(place.file);
  return {file, file->bytes().subspan(static_cast<size_t>(place.begin),
                                      static_cast<size_t>(place.bytes))};
}

FileElements TorchDistDirectory::elements(const std::string& name,
                                          const TorchDistIndex::Tensor& tensor,
                                          const TorchDistIndex::Piece& piece) const {
  const TorchFile file = open(piece.place);
  const Shape& shape = piece.region.shape;
  const PyTensor* stored = file.root().tensor();
  if (stored == nullptr || !(stored->shape == shape) || stored->dtype != tensor.dtype) {
    throw FormatError(fmt::format("{}: at {} is {}, but {} says that it is a piece {} of {}; {}",
                                  (directory_ / piece.place.file).string(), piece.place.begin,
                                  file.root().description(), kTorchDistMetadata, shape.str(), name,
                                  kRemedy));
  }
  return file.elements(*stored);
}

}  // namespace megatron

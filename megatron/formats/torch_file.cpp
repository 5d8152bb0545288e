#include "megatron/formats/torch_file.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <fstream>

#include "megatron/core/crc32c.h"
#include "megatron/core/error.h"

namespace megatron {
namespace {

constexpr std::string_view kTorchZipMagic = "PK\x03\x04";
// The pickle of 0x1950a86a20f9469cfc6c, which begins the older stream.
constexpr std::string_view kStreamMagic =
    "\x80\x02\x8a\x0a\x6c\xfc\x9c\x46\xf9\x20\x6a\xa8\x50\x19\x2e";
constexpr size_t kTarMagicOffset = 257;
constexpr int64_t kStreamProtocol = 1001;
// Larger than the pickle of any real model.
constexpr size_t kMaxPickle = size_t{1} << 28;

std::string_view text_of(std::span<const std::byte> bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

void gather(std::byte* to, const std::byte* from, const PyTensor& tensor, int axis,
            int64_t element) {
  if (axis == tensor.shape.rank()) {
    std::memcpy(to, from, static_cast<size_t>(element));
    return;
  }
  int64_t step = element;
  for (int inner = axis + 1; inner < tensor.shape.rank(); ++inner) step *= tensor.shape[inner];
  const int64_t stride = tensor.strides[static_cast<size_t>(axis)] * element;
  for (int64_t i = 0; i < tensor.shape[axis]; ++i) {
    gather(to + i * step, from + i * stride, tensor, axis + 1, element);
  }
}

}  // namespace

TorchFile::TorchFile(const std::filesystem::path& path, const PickleOptions& options)
    : TorchFile(std::make_shared<const MappedFile>(path), options) {}

TorchFile::TorchFile(const std::shared_ptr<const MappedFile>& file, const PickleOptions& options)
    : TorchFile(file, file->bytes(), options) {}

TorchFile::TorchFile(std::shared_ptr<const MappedFile> file, std::span<const std::byte> bytes,
                     const PickleOptions& options)
    : file_(std::move(file)), bytes_(bytes), document_(std::make_unique<PyDocument>()) {
  const std::string_view text = text_of(bytes_);
  try {
    if (text.starts_with(kTorchZipMagic)) {
      open_zip(options);
    } else if (text.starts_with(kStreamMagic)) {
      open_stream(options);
    } else if (text.size() > kTarMagicOffset && text.substr(kTarMagicOffset).starts_with("ustar")) {
      throw Unsupported(fmt::format(
          "{}: is a tar file of PyTorch 0.1; load and save it with PyTorch 1", path().string()));
    } else {
      throw FormatError(
          fmt::format("{}: does not begin like a file of torch.save", path().string()));
    }
  } catch (const FormatError& error) {
    const std::string_view what = error.what();
    if (!what.starts_with("pickle")) throw;
    throw FormatError(fmt::format("{}: {}", path().string(), what));
  }
}

void TorchFile::open_zip(const PickleOptions& options) {
  constexpr std::string_view kPickle = "/data.pkl";
  archive_ = std::make_unique<ZipArchive>(bytes_, path());
  const ZipEntry* pickle = nullptr;
  for (const ZipEntry& entry : archive_->entries()) {
    if (!entry.name.ends_with(kPickle) ||
        entry.name.find('/') + kPickle.size() != entry.name.size())
      continue;
    if (pickle != nullptr) {
      throw FormatError(
          fmt::format("{}: has two pickles, {} and {}", path().string(), pickle->name, entry.name));
    }
    pickle = &entry;
  }
  if (pickle == nullptr) {
    throw FormatError(fmt::format("{}: the archive has no data.pkl; was it made by torch.save?",
                                  path().string()));
  }
  folder_ = pickle->name.substr(0, pickle->name.size() - kPickle.size() + 1);
  if (archive_->find(folder_ + "constants.pkl") != nullptr) {
    throw Unsupported(fmt::format(
        "{}: is a TorchScript archive; save the model's state_dict instead", path().string()));
  }
  const ZipEntry* order = archive_->find(folder_ + "byteorder");
  if (order != nullptr && text_of(order->bytes) != "little") {
    throw Unsupported(
        fmt::format("{}: was saved on a big-endian machine; save it on another", path().string()));
  }
  if (pickle->bytes.size() > kMaxPickle) {
    throw FormatError(fmt::format("{}: its pickle has {} bytes, the limit is {}", path().string(),
                                  pickle->bytes.size(), kMaxPickle));
  }
  if (crc32(pickle->bytes) != pickle->crc) {
    throw FormatError(
        fmt::format("{}: the bytes of {} do not have their checksum; the file is damaged",
                    path().string(), pickle->name));
  }
  document_->set_root(unpickle(pickle->bytes, *document_, options).value);
}

void TorchFile::open_stream(const PickleOptions& options) {
  std::span<const std::byte> rest = bytes_;
  const auto next = [&] {
    const Unpickled value =
        unpickle(rest.first(std::min(rest.size(), kMaxPickle)), *document_, options);
    rest = rest.subspan(value.bytes);
    return value.value;
  };
  next();  // the magic number
  if (next().integer() != kStreamProtocol) {
    throw FormatError(fmt::format("{}: the protocol is not {}", path().string(), kStreamProtocol));
  }
  const PyValue system = next();
  const PyValue* little_endian = system.find("little_endian");
  if (little_endian == nullptr || little_endian->boolean() != true) {
    throw Unsupported(fmt::format("{}: was not saved on a little-endian machine", path().string()));
  }
  document_->set_root(next());
  const PyValue keys = next();
  // The size of elements is stored with tensors, not with storages. So storages are located after
  // all keys are known.
  std::map<std::string_view, int64_t> element_bytes;
  std::vector<PyValue> pending = {document_->root()};
  while (!pending.empty()) {
    const PyValue value = pending.back();
    pending.pop_back();
    if (const PyTensor* tensor = value.tensor())
      element_bytes[tensor->storage] = size_of(tensor->dtype);
    if (const PyObject* object = value.object()) pending.push_back(object->arguments);
    for (const PyValue item : value.items()) pending.push_back(item);
    for (const auto& [key, entry] : value.entries()) pending.push_back(entry);
  }
  for (const PyValue key : keys.items()) {
    const std::string_view name = key.text().value_or("");
    const auto known = element_bytes.find(name);
    if (known == element_bytes.end() || rest.size() < sizeof(int64_t)) {
      throw FormatError(fmt::format("{}: the storage {} is truncated or is not part of a tensor",
                                    path().string(), name));
    }
    int64_t numel = 0;
    std::memcpy(&numel, rest.data(), sizeof(numel));
    rest = rest.subspan(sizeof(numel));
    if (numel < 0 ||
        static_cast<uint64_t>(numel) > rest.size() / static_cast<uint64_t>(known->second)) {
      throw FormatError(fmt::format("{}: the storage {} of {} elements is cut off", path().string(),
                                    name, numel));
    }
    const auto bytes = static_cast<size_t>(numel * known->second);
    stream_storages_[std::string(name)] = rest.first(bytes);
    rest = rest.subspan(bytes);
  }
}

std::span<const std::byte> TorchFile::checked_storage(const PyTensor& tensor) const {
  const auto missing = [&] {
    return FormatError(
        fmt::format("{}: has no storage {}; the file is damaged", path().string(), tensor.storage));
  };
  std::span<const std::byte> bytes;
  if (archive_ != nullptr) {
    const ZipEntry* entry = archive_->find(folder_ + "data/" + tensor.storage);
    if (entry == nullptr) throw missing();
    bytes = entry->bytes;
    const auto is_checked = [&] {
      const std::lock_guard lock(checked_->mutex);
      return checked_->names.contains(tensor.storage);
    };
    if (!is_checked()) {
      if (crc32(bytes) != entry->crc) {
        throw FormatError(
            fmt::format("{}: the bytes of {} do not have their checksum; the file is damaged",
                        path().string(), entry->name));
      }
      const std::lock_guard lock(checked_->mutex);
      checked_->names.insert(tensor.storage);
    }
  } else {
    const auto found = stream_storages_.find(tensor.storage);
    if (found == stream_storages_.end()) throw missing();
    bytes = found->second;
  }
  const int64_t expected = tensor.storage_numel * size_of(tensor.dtype);
  if (static_cast<int64_t>(bytes.size()) < expected) {
    throw FormatError(fmt::format("{}: the storage {} has {} bytes, expected {}", path().string(),
                                  tensor.storage, bytes.size(), expected));
  }
  return bytes;
}

FileElements TorchFile::elements(const PyTensor& tensor) const {
  const std::span<const std::byte> storage = checked_storage(tensor);
  const int64_t element = size_of(tensor.dtype);
  FileElements result;
  if (tensor.shape.numel() == 0) {
    result.view = {storage.data(), tensor.shape, tensor.dtype};
    return result;
  }
  const std::byte* first = storage.data() + tensor.offset * element;
  if (tensor.is_contiguous()) {
    result.view = {first, tensor.shape, tensor.dtype};
    result.lease = lease_of(result.view);
    return result;
  }
  // A stride of 0 repeats elements: allow at most as many as the file could hold.
  if (tensor.shape.numel() * element > static_cast<int64_t>(bytes_.size())) {
    throw FormatError(fmt::format("{}: a tensor of shape {} is larger than the file",
                                  path().string(), tensor.shape.str()));
  }
  result.owner = Tensor(tensor.shape, tensor.dtype, Stream{});
  gather(static_cast<std::byte*>(result.owner.view().data), first, tensor, 0, element);
  result.view = std::as_const(result.owner).view();
  return result;
}

bool is_torch_file(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  std::string head(kStreamMagic.size(), '\0');
  file.read(head.data(), static_cast<std::streamsize>(head.size()));
  head.resize(static_cast<size_t>(file.gcount()));
  return head.starts_with(kTorchZipMagic) || head == kStreamMagic;
}

}  // namespace megatron

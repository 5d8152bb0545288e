#pragma once

#include <filesystem>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <span>
#include <string>
#include <string_view>

#include "megatron/core/file.h"
#include "megatron/formats/file_elements.h"
#include "megatron/formats/pickle.h"
#include "megatron/formats/python_value.h"
#include "megatron/formats/zip.h"

// The files of torch.save: zip archives (PyTorch 1.6 and later), and the older stream of pickles.
namespace megatron {

// A file mapped into memory. Opening reads only its pickle; elements of tensors are read in place,
// and each storage is checked against its CRC-32 at first use (the older stream has none). Several
// threads may read elements.
//
// Throws IoError; FormatError with path and offset for anything malformed (pickle.h, zip.h) or
// damaged; Unsupported for TorchScript archives, PyTorch 0.1's tar files and big-endian data.
class TorchFile {
 public:
  explicit TorchFile(const std::filesystem::path& path, const PickleOptions& options = {});
  // An output of torch.save that is a part of a file. REQUIRES: `bytes` are inside that file.
  TorchFile(std::shared_ptr<const MappedFile> file, std::span<const std::byte> bytes,
            const PickleOptions& options = {});
  TorchFile(TorchFile&&) = default;
  TorchFile& operator=(TorchFile&&) = default;

  const std::filesystem::path& path() const { return file_->path(); }
  // The saved object; valid while this lives.
  PyValue root() const { return document_->root(); }

  // REQUIRES: `tensor` belongs to this file. Views are valid while the mapped file lives.
  FileElements elements(const PyTensor& tensor) const;

 private:
  TorchFile(const std::shared_ptr<const MappedFile>& file, const PickleOptions& options);
  void open_zip(const PickleOptions& options);
  void open_stream(const PickleOptions& options);
  std::span<const std::byte> checked_storage(const PyTensor& tensor) const;

  std::shared_ptr<const MappedFile> file_;
  std::span<const std::byte> bytes_;
  std::unique_ptr<PyDocument> document_;
  std::unique_ptr<ZipArchive> archive_;
  std::string folder_;  // prefix of the entries: "model_optim_rng/"
  std::map<std::string, std::span<const std::byte>> stream_storages_;  // of the older form
  // Storages with a verified checksum.
  struct Checked {
    std::mutex mutex;
    std::set<std::string> names;
  };
  std::unique_ptr<Checked> checked_ = std::make_unique<Checked>();
};

// True if the file begins like one of torch.save. False if it cannot be read.
bool is_torch_file(const std::filesystem::path& path);

}  // namespace megatron

#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "megatron/core/file.h"

// Zip archives. Entries of torch.save are stored without compression and begin at multiples of 64
// bytes, so they can be used in place in a mapped file.
namespace megatron {

struct ZipEntry {
  std::string name;
  std::span<const std::byte> bytes;  // in the archive
  uint64_t size = 0;                 // of the content; that of `bytes` unless is_deflated
  uint32_t crc = 0;                  // CRC-32 of the content
  bool is_deflated = false;
};

enum class ZipContent {
  kStored,           // rejects deflated entries
  kStoredOrDeflated  // for unzip.h
};

// The directory of an archive, including zip64. Throws FormatError with `path` and the offset for
// inconsistencies: entries that overlap or are outside the archive, duplicate names, and names
// outside the archive's folder; Unsupported for encrypted entries and for compression methods that
// `content` does not allow.
class ZipArchive {
 public:
  // `archive` must outlive this.
  ZipArchive(std::span<const std::byte> archive, const std::filesystem::path& path,
             ZipContent content = ZipContent::kStored);

  const std::vector<ZipEntry>& entries() const { return entries_; }
  // Null if there is no such entry.
  const ZipEntry* find(std::string_view name) const;

 private:
  std::vector<ZipEntry> entries_;
  std::map<std::string_view, size_t> positions_;  // keys live in entries_
};

// Writes an archive from front to back. Sizes are given in advance; checksums follow the bytes.
class ZipWriter {
 public:
  // Throws IoError; the file appears with commit().
  explicit ZipWriter(std::filesystem::path path)
      : own_(std::make_unique<FileWriter>(std::move(path))), file_(*own_) {}
  // Appends an archive to `file`: commit() ends the archive, not the file.
  explicit ZipWriter(FileWriter& file) : file_(file), first_(file.bytes_written()) {}

  // Begins the next entry. REQUIRES: the previous one is complete.
  void begin(std::string name, uint64_t bytes);
  void write(std::span<const std::byte> bytes);
  void add(std::string name, std::string_view text);
  void commit();

 private:
  struct Written {
    std::string name;
    uint64_t offset = 0;  // of the local header
    uint64_t bytes = 0;
    uint32_t crc = 0;
  };
  void end();
  uint64_t bytes_written() const { return static_cast<uint64_t>(file_.bytes_written() - first_); }

  std::unique_ptr<FileWriter> own_;  // empty if the file is another's
  FileWriter& file_;
  int64_t first_ = 0;  // of the archive's bytes
  std::vector<Written> written_;
  uint64_t missing_ = 0;  // bytes of the last entry
};

}  // namespace megatron

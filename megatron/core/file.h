#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <span>
#include <string>
#include <string_view>

namespace megatron {

// A whole file mapped read-only into memory. Throws IoError with the path and the system's reason.
// An empty file maps to an empty span.
class MappedFile {
 public:
  explicit MappedFile(const std::filesystem::path& path);
  ~MappedFile();
  MappedFile(MappedFile&& other) noexcept;
  MappedFile& operator=(MappedFile&& other) noexcept;

  std::span<const std::byte> bytes() const { return {data_, size_}; }
  const std::filesystem::path& path() const { return path_; }

 private:
  std::filesystem::path path_;
  const std::byte* data_ = nullptr;
  size_t size_ = 0;
};

// The text of a file. Throws IoError.
std::string read_text(const std::filesystem::path& path);

// A new file, written in order through a buffer. It appears under its name only when commit()
// succeeds; before that the bytes are in "<path>.tmp-megatron", which this object locks and its
// destructor removes. A temporary file left by a killed program is unlocked, and the next writer of
// the path removes it. A second concurrent writer of the path uses "<path>.tmp-megatron-2". Every
// call throws IoError with path and reason (a full disk, a missing directory). Write-back to the
// device starts while later bytes are still being written.
class FileWriter {
 public:
  explicit FileWriter(std::filesystem::path path);
  ~FileWriter();
  FileWriter(const FileWriter&) = delete;
  FileWriter& operator=(const FileWriter&) = delete;

  void write(std::span<const std::byte> bytes);
  void write(std::string_view text);
  int64_t bytes_written() const { return bytes_written_; }
  // Flushes all bytes to the device; nothing may be written afterwards.
  void sync();
  // Syncs, unless sync() did, and renames into place.
  void commit();
  const std::filesystem::path& path() const { return path_; }

 private:
  void create();
  void flush();
  void write_through(std::string_view bytes);

  std::filesystem::path path_;
  std::filesystem::path temporary_;
  int descriptor_ = -1;  // holds the lock until the file has its name
  bool is_synced_ = false;
  std::string buffer_;
  int64_t bytes_written_ = 0;
  int64_t bytes_on_the_way_ = 0;  // write-back has started
};

// Writes `text` atomically: readers see the old file or the whole new one. Throws IoError.
void write_text_atomically(const std::filesystem::path& path, std::string_view text);

// Commits two files that are read together and have one parent. Existing files of their names stay
// until both are on the device, and the old second file never accompanies the new first one, even
// after a power failure in between. Throws IoError.
void commit_together(FileWriter& first, FileWriter& second);

// Copies a file atomically: the copy appears whole or not at all. Throws IoError.
void copy_whole_file(const std::filesystem::path& from, const std::filesystem::path& to);

// Syncs a directory, so that a rename inside it survives a power cut. Throws IoError.
void sync_directory(const std::filesystem::path& directory);

// True if `path` still names the open file. Check after waiting for a lock on a file: its previous
// holder may have renamed or deleted it.
bool is_still_named(int descriptor, const std::filesystem::path& path);

}  // namespace megatron

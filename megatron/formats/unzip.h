#pragma once

#include <filesystem>

namespace megatron {

// True for a zip archive of files. False for a file of torch.save, which is a zip archive, too, and
// for unreadable files.
bool is_archive_of_files(const std::filesystem::path& path);

// Unpacks a zip archive into a new directory below TMPDIR, which the destructor removes. The
// directory is locked, so that the next archive can detect and remove directories of killed
// programs.
class UnpackedArchive {
 public:
  // Throws IoError; FormatError, Unsupported (zip.h), also for content of the wrong size or
  // checksum.
  explicit UnpackedArchive(const std::filesystem::path& archive);
  ~UnpackedArchive();
  UnpackedArchive(const UnpackedArchive&) = delete;
  UnpackedArchive& operator=(const UnpackedArchive&) = delete;

  const std::filesystem::path& directory() const { return directory_; }

 private:
  void remove() const;
  void make_directory(const std::filesystem::path& archive);
  void unpack(const std::filesystem::path& archive) const;

  std::filesystem::path directory_;
  int descriptor_ = -1;  // holds the lock
};

}  // namespace megatron

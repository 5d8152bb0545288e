#pragma once

#include <filesystem>

namespace megatron {

// Is it a zip archive of files? False for a file of torch.save, which is a zip archive, too, and if
// it cannot be read.
bool is_archive_of_files(const std::filesystem::path& path);

// The files of a zip archive in a new directory below that of temporary files (TMPDIR), which lives
// as long as this. It is locked, so that the next archive removes the directories of killed
// programs.
class UnpackedArchive {
 public:
  // Throws IoError; FormatError, Unsupported (zip.h), also for content that does not have its size
  // or checksum.
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

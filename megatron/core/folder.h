#pragma once

#include <filesystem>

// Folders that appear whole or not at all. While one is written it is "<place>.tmp-<random>"; what
// it replaces is "<place>.tmp-<random>-replaced" for a moment on file systems that cannot exchange
// two names. One program at a time may write a place: callers hold a lock.
namespace megatron {

class UnfinishedFolder {
 public:
  // Removes what interrupted programs left of this place, and makes an empty folder beside it.
  // Throws IoError.
  explicit UnfinishedFolder(std::filesystem::path place);
  // Removes the new folder if it was not committed, else the one that it replaced; warns if the
  // latter cannot be deleted.
  ~UnfinishedFolder();
  UnfinishedFolder(const UnfinishedFolder&) = delete;
  UnfinishedFolder& operator=(const UnfinishedFolder&) = delete;

  // Where to write. REQUIRES: files are synced by those who write them.
  const std::filesystem::path& path() const { return path_; }
  // Syncs all folders below path(), and puts it in place. The place holds a whole folder, the old
  // or the new one, at every moment, or restored_folder() finds the old one. Throws IoError; then
  // the old one is in place, or is found so.
  void commit();

 private:
  void replace_by_two_renames();

  const std::filesystem::path place_;
  std::filesystem::path path_;
  bool is_committed_ = false;
};

// Has the entry of a directory the name of an unfinished or replaced folder of `place`?
bool is_unfinished_name(const std::filesystem::path& entry, const std::filesystem::path& place);

// Removes what interrupted programs left beside `place`, after putting back a folder that was to be
// replaced if there is no other. Throws IoError.
void remove_unfinished_folders(const std::filesystem::path& place);

// The folder of a place. If a program was stopped while it replaced the folder, puts the old one
// back first, or returns its present path if this user may not rename it.
std::filesystem::path restored_folder(const std::filesystem::path& place);

}  // namespace megatron

#pragma once

#include <filesystem>

// Folders that appear atomically at their path, here called the place. While one is written it is
// "<place>.tmp-<random>"; the folder it replaces is briefly "<place>.tmp-<random>-replaced" on file
// systems that cannot exchange two names. Only one program at a time may write a place: callers
// hold a lock.
namespace megatron {

class UnfinishedFolder {
 public:
  // Removes leftovers of interrupted programs, and makes an empty folder beside the place. Throws
  // IoError.
  explicit UnfinishedFolder(std::filesystem::path place);
  // Removes the new folder if it was not committed, else the one that it replaced; warns if the
  // latter cannot be deleted.
  ~UnfinishedFolder();
  UnfinishedFolder(const UnfinishedFolder&) = delete;
  UnfinishedFolder& operator=(const UnfinishedFolder&) = delete;

  // The folder to write to. REQUIRES: writers sync their files.
  const std::filesystem::path& path() const { return path_; }
  // Syncs all folders below path(), and moves it into place. At every moment the place holds a
  // complete folder, old or new, or restored_folder() finds the old one; so, too, after an IoError,
  // which leaves the old one.
  void commit();

 private:
  void replace_by_two_renames();

  const std::filesystem::path place_;
  std::filesystem::path path_;
  bool is_committed_ = false;
};

// True if a directory entry has the name of an unfinished or replaced folder of `place`.
bool is_unfinished_name(const std::filesystem::path& entry, const std::filesystem::path& place);

// Removes leftovers of interrupted programs beside `place`, after restoring a folder that was being
// replaced if the place is empty. Throws IoError.
void remove_unfinished_folders(const std::filesystem::path& place);

// The folder of a place. If a program was stopped while replacing the folder, first restores the
// old one, or returns its present path if this user may not rename it.
std::filesystem::path restored_folder(const std::filesystem::path& place);

}  // namespace megatron

#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <initializer_list>
#include <string>
#include <string_view>

#include "megatron/data/split.h"

namespace megatron {

// Naming scheme of cache files; the arrays are the same.
enum class CacheNaming {
  kCore05,     // <md5>-GPTDataset-document_index.npy        (core_r0.5.0)
  kWithSplit,  // <md5>-GPTDataset-train-document_index.npy  (later versions)
};

// Cache files of one dataset's index arrays, named after the digest of a description of their
// inputs except the state of the data. A separate file, "<digest>-GPTDataset-data.txt", has this
// state: size, checksum and time of the dataset's .idx when the arrays were built. The checksum is
// compared only if the time differs. Files appear atomically, the description last, so ranks may
// build the same index concurrently.
//
// Compat: Megatron-LM has the same files without the state, and reads arrays of any state. Arrays
// without a state file are used if they are not older than the .idx.
class IndexCache {
 public:
  // `class_name` is "GPTDataset" or another of Megatron's dataset classes. `data` is the .idx that
  // the arrays depend on; empty if they depend only on the description.
  IndexCache(std::filesystem::path directory, std::string_view class_name, std::string description,
             Split split, CacheNaming naming, std::filesystem::path data = {});

  // Path of an array; `name` is "document_index", ...
  std::filesystem::path array_file(std::string_view name) const;
  std::filesystem::path description_file() const;
  // True if the description and all these arrays exist for the present state of the data. Warns if
  // they are of another state.
  bool holds(std::initializer_list<std::string_view> names) const;
  // Announces the build of a large index, with its expected time and size.
  void announce(int64_t num_samples, int64_t bytes) const;
  // Creates the directory, calls `save_arrays` and writes the description. If the directory is not
  // writable, warns and returns false: the next start builds the index again.
  bool save(const std::function<void()>& save_arrays) const;

 private:
  bool has_data() const { return !size_text_.empty() && !time_text_.empty(); }
  std::filesystem::path state_file() const;
  bool is_of_present_data(std::initializer_list<std::string_view> names) const;

  std::filesystem::path directory_;
  Split split_;
  std::string stem_;
  std::string description_;
  std::filesystem::path data_;
  // Of data_, when this object was made; empty if there is no such file.
  std::string size_text_;
  std::string time_text_;
};

}  // namespace megatron

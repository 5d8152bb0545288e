#pragma once

#include <cstdint>
#include <filesystem>
#include <span>
#include <vector>

#include "annex/retro/data/mapped_rows.h"

namespace megatron {

// The ids of each sample chunk's nearest neighbours, most similar first: the files of one directory
// query/<split>_<digest>. Reading is thread safe.
class NeighborTable {
 public:
  // Throws ConfigError, with the inputs of the digest in its name, if the directory is missing;
  // IoError; FormatError for invalid files.
  explicit NeighborTable(std::filesystem::path directory);

  // Throws ConfigError unless there are neighbours for this many chunks.
  void expect_chunks(int64_t count) const;

  int64_t num_chunks() const { return num_chunks_; }
  // Stored neighbours per chunk; -1 represents a missing one.
  int64_t num_neighbors() const { return num_neighbors_; }
  // Throws Error unless 0 <= chunk < num_chunks().
  std::span<const int64_t> neighbors_of(int64_t chunk) const;

 private:
  std::filesystem::path directory_;
  std::vector<MappedRows<int64_t>> blocks_;
  std::vector<int64_t> begins_;  // first chunk of each block
  int64_t num_chunks_ = 0;
  int64_t num_neighbors_ = 0;
};

}  // namespace megatron

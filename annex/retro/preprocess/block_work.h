#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>

#include "annex/retro/data/hdf5_file.h"
#include "annex/retro/data/work_directory.h"
#include "megatron/comm/group.h"

namespace megatron::retro {

// Work on many items whose results are the block files of a directory.
struct BlockWork {
  std::string what;  // of a line of progress: "embedding chunks"
  int64_t count = 0;
  int64_t block_size = 0;
  std::filesystem::path directory;
  // True if a file equals the output of make().
  std::function<bool(const Hdf5File& file, const Block& block)> is_valid;
  // Writes the file of a block.
  std::function<void(const Block& block)> make;
};

// Makes the missing blocks, dealt over the ranks; a file that cannot be read or is not valid counts
// as missing, and files of other block sizes are deleted. Every rank calls it, and it returns when
// all blocks are there.
void make_missing_blocks(const BlockWork& work, const comm::Group& world);

}  // namespace megatron::retro

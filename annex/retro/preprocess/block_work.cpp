#include "annex/retro/preprocess/block_work.h"

#include <fmt/format.h>

#include <algorithm>
#include <set>
#include <system_error>
#include <vector>

#include "megatron/comm/collectives.h"
#include "megatron/comm/working.h"
#include "megatron/core/error.h"
#include "megatron/core/log.h"
#include "megatron/run/collectively.h"

namespace megatron::retro {
namespace {

bool is_there(const BlockWork& work, const Block& block) {
  std::error_code ignored;
  if (!std::filesystem::exists(block.path, ignored)) return false;
  try {
    if (work.is_valid(Hdf5File(block.path), block)) return true;
  } catch (const FormatError&) {  // made again, as the warning says
  }
  warn(fmt::format("{}: is damaged or of other settings; making it again", block.path.string()));
  std::filesystem::remove(block.path);
  return false;
}

// 1 for each block that is missing. Deletes all other files of the directory: those of interrupted
// writes and of other block sizes.
std::vector<int64_t> find_missing(const BlockWork& work, const std::vector<Block>& blocks) {
  std::filesystem::create_directories(work.directory);
  std::set<std::filesystem::path> known;
  for (const Block& block : blocks) known.insert(block.path);
  std::vector<std::filesystem::path> others;
  for (const auto& entry : std::filesystem::directory_iterator(work.directory)) {
    if (!known.contains(entry.path())) others.push_back(entry.path());
  }
  for (const std::filesystem::path& other : others) std::filesystem::remove(other);
  std::vector<int64_t> missing;
  for (const Block& block : blocks) missing.push_back(is_there(work, block) ? 0 : 1);
  return missing;
}

}  // namespace

void make_missing_blocks(const BlockWork& work, const comm::Group& world) {
  const comm::Working working(world, work.what);
  const std::vector<Block> blocks = blocks_of(work.count, work.block_size, work.directory);
  const auto count = static_cast<int64_t>(blocks.size());
  std::vector<int64_t> missing(blocks.size());
  on_first_rank(world, [&] { missing = find_missing(work, blocks); });
  if (count > 0) comm::broadcast({missing.data(), {count}, DType::kInt64}, 0, world, Stream{});

  const int64_t total = std::ranges::count(missing, 1);
  int64_t number = 0;
  for (size_t k = 0; k < blocks.size(); ++k) {
    if (missing[k] == 0) continue;
    if (number % world.size() == world.rank()) {
      print_line(fmt::format("> {}: block {} of {}, {}", work.what, number + 1, total,
                             blocks[k].path.filename().string()));
      work.make(blocks[k]);
    }
    ++number;
  }
  comm::barrier(world);
}

}  // namespace megatron::retro

#include "annex/retro/data/neighbor_table.h"

#include <fmt/format.h>

#include <algorithm>
#include <system_error>
#include <utility>

#include "annex/retro/data/work_directory.h"
#include "megatron/core/error.h"

namespace megatron {
namespace {

constexpr const char* kHint =
    "compare --train-samples, --seq-length, --seed, --split, --eval-iters, --eval-interval, "
    "--global-batch-size, --data-path and the paths of the tokenizer with those of megatron "
    "retro-preprocess, or run it with these";

}  // namespace

NeighborTable::NeighborTable(std::filesystem::path directory) : directory_(std::move(directory)) {
  std::error_code ignored;
  if (!std::filesystem::is_directory(directory_, ignored)) {
    throw ConfigError(
        fmt::format("{}: this directory of neighbours is missing; {}", directory_.string(), kHint));
  }
  for (const Block& block : find_blocks(directory_)) {
    MappedRows<int64_t> rows(block.path, "neighbors");
    if (blocks_.empty()) num_neighbors_ = rows.columns();
    if (rows.count() != block.size() || rows.columns() != num_neighbors_) {
      throw FormatError(fmt::format(
          "{}: has {} rows of {} neighbours, expected {} of {}; delete it and run "
          "megatron retro-preprocess again",
          block.path.string(), rows.count(), rows.columns(), block.size(), num_neighbors_));
    }
    begins_.push_back(block.begin);
    blocks_.push_back(std::move(rows));
    num_chunks_ = block.end;
  }
}

void NeighborTable::expect_chunks(int64_t count) const {
  if (count == num_chunks_) return;
  throw ConfigError(fmt::format("{}: has the neighbours of {} chunks, but the samples have {}; {}",
                                directory_.string(), num_chunks_, count, kHint));
}

std::span<const int64_t> NeighborTable::neighbors_of(int64_t chunk) const {
  if (chunk < 0 || chunk >= num_chunks_) {
    throw Error(
        fmt::format("{}: chunk {} is outside [0, {})", directory_.string(), chunk, num_chunks_));
  }
  const auto next = std::upper_bound(begins_.begin(), begins_.end(), chunk);
  const auto block = static_cast<size_t>(next - begins_.begin()) - 1;
  return blocks_[block][chunk - begins_[block]];
}

}  // namespace megatron

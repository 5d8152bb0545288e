#include "annex/deepspeed/checkpoint/shards.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "megatron/core/error.h"
#include "megatron/formats/safetensors.h"
#include "megatron/interchange/megatron/shard_parts.h"

namespace megatron {
namespace {

FileElements elements_of(const DeepSpeedShard& shard) {
  FileElements elements = shard.read();
  elements.view.shape = shard.shape;
  return elements;
}

FileElements mean_of(const std::vector<DeepSpeedShard>& shards) {
  const FileElements first = elements_of(shards[0]);
  if (shards.size() == 1) return first;
  Tensor sum = cast(copy_of(first.view), DType::kFloat32);
  for (size_t i = 1; i < shards.size(); ++i) {
    add_inplace(sum, cast(copy_of(elements_of(shards[i]).view), DType::kFloat32));
  }
  scale_inplace(sum, 1.0f / static_cast<float>(shards.size()));
  const Tensor mean = cast(sum, first.view.dtype);
  return {mean.view(), mean};
}

}  // namespace

StoredTensor joined_shards(const std::string& ours, const Sharding& sharding,
                           const std::vector<DeepSpeedShard>& shards) {
  const auto ranks = static_cast<int64_t>(shards.size());
  const DeepSpeedShard& first = shards[0];
  for (const DeepSpeedShard& shard : shards) {
    if (shard.shape == first.shape && shard.dtype == first.dtype) continue;
    throw FormatError(
        fmt::format("{}: {} has another shape or type than on other ranks", shard.file, ours));
  }
  if (first.shape.rank() <= sharding.last_axis()) {
    throw FormatError(fmt::format("{}: {} has shape {}", first.file, ours, first.shape.str()));
  }
  StoredTensor stored;
  stored.shape = sharding.on_rank(0, ranks).whole(first.shape);
  stored.dtype = first.dtype;
  if (!sharding.is_divided()) {
    stored.pieces = {
        {shard_parts({}, stored.shape)[0].region, [shards] { return mean_of(shards); }}};
    return stored;
  }
  const int64_t row_bytes =
      first.shape[0] == 0 ? 0 : first.shape.numel() / first.shape[0] * size_of(stored.dtype);
  for (int64_t rank = 0; rank < ranks; ++rank) {
    const DeepSpeedShard& shard = shards[static_cast<size_t>(rank)];
    for (const ShardPart& part : shard_parts(sharding.on_rank(rank, ranks), stored.shape)) {
      stored.pieces.push_back(
          {part.region, [shard, shape = part.region.shape, skipped = part.begin * row_bytes] {
             FileElements elements = shard.read();
             elements.view.data = static_cast<const std::byte*>(elements.view.data) + skipped;
             elements.view.shape = shape;
             return elements;
           }});
    }
  }
  return stored;
}

}  // namespace megatron

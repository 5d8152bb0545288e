#include "megatron/interchange/megatron/shard_parts.h"

#include <fmt/format.h>

#include "megatron/core/error.h"

namespace megatron {
namespace {

Region rows_of(const Shape& whole, int64_t begin, int64_t count) {
  Region region = whole_region(whole.with(0, count));
  region.offset[0] = begin;
  return region;
}

}  // namespace

std::vector<ShardPart> shard_parts(const Sharding& sharding, const Shape& whole) {
  const Shape shard = sharding.local(whole);
  // Rows of an expert's matrix are on the second axis.
  const int axis = !sharding.axes.empty() && sharding.axes[0].along == MeshAxis::kExpert ? 1 : 0;
  std::vector<ShardPart> parts;
  for (const Sharding::Block& block : sharding.blocks(shard)) {
    const int64_t begin = shard.rank() == 0 ? 0 : block.local[static_cast<size_t>(axis)];
    invariant(shard.rank() == 0 || block.shape == shard.with(axis, block.shape[axis]),
              "the parts of a shard are rows");
    parts.push_back({begin, {block.whole, block.shape}});
  }
  return parts;
}

std::vector<ShardPart> old_qkv_parts(int64_t version, const Shape& whole, int64_t rank,
                                     int64_t ranks, int64_t heads, int64_t channels) {
  if (whole.rank() == 0 || heads <= 0 || channels <= 0 || heads % ranks != 0 ||
      whole[0] != 3 * heads * channels) {
    throw ShapeError(fmt::format(
        "queries, keys and values of shape {} are not those of {} heads of {} channels on {} ranks",
        whole.str(), heads, channels, ranks));
  }
  const int64_t local = heads / ranks;
  std::vector<ShardPart> parts;
  for (int64_t head = 0; head < local; ++head) {
    for (int64_t kind = 0; kind < 3; ++kind) {
      const int64_t to = ((rank * local + head) * 3 + kind) * channels;
      if (version == 0) {
        parts.push_back({(kind * local + head) * channels, rows_of(whole, to, channels)});
        continue;
      }
      for (int64_t channel = 0; channel < channels; ++channel) {
        parts.push_back({(head * channels + channel) * 3 + kind, rows_of(whole, to + channel, 1)});
      }
    }
  }
  return parts;
}

std::vector<TensorPiece> pieces_of_shard(const std::vector<ShardPart>& parts, const Shape& shard,
                                         DType dtype, const ElementReader& reader) {
  const bool is_empty = shard.rank() == 0 || shard[0] == 0;
  const int64_t row_bytes = is_empty ? 0 : shard.numel() / shard[0] * size_of(dtype);
  std::vector<TensorPiece> pieces;
  pieces.reserve(parts.size());
  for (const ShardPart& part : parts) {
    pieces.push_back(
        {part.region, [reader, shape = part.region.shape, skipped = part.begin * row_bytes] {
           FileElements elements = reader();
           elements.view.data = static_cast<const std::byte*>(elements.view.data) + skipped;
           elements.view.shape = shape;
           return elements;
         }});
  }
  return pieces;
}

}  // namespace megatron

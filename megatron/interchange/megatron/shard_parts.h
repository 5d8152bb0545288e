#pragma once

#include <cstdint>
#include <vector>

#include "megatron/checkpoint/contents.h"
#include "megatron/formats/region.h"
#include "megatron/interchange/megatron/files.h"
#include "megatron/nn/parameter.h"

// Maps the rows of a tensor-parallel rank's shard to the whole tensor.
namespace megatron {

// Consecutive rows of a shard, and their rectangle of the whole tensor. A shard of a tensor of
// experts has one of them: its rows are those of that expert's matrix, or the elements of its bias.
struct ShardPart {
  int64_t begin = 0;  // the first row, within the shard
  Region region;      // has as many rows as the part
};

// The parts of a rank's shard, in the order of its rows. Throws ShapeError if the tensor is not
// divisible.
std::vector<ShardPart> shard_parts(const Sharding& sharding, const Shape& whole);

// The same for queries, keys and values in the order of an older checkpoint version (0: by kind,
// 1: interleaved). `heads` is their number in the whole model, `channels` of one.
std::vector<ShardPart> old_qkv_parts(int64_t version, const Shape& whole, int64_t rank,
                                     int64_t ranks, int64_t heads, int64_t channels);

// The pieces of the whole tensor in those parts of a shard, which `reader` reads.
std::vector<TensorPiece> pieces_of_shard(const std::vector<ShardPart>& parts, const Shape& shard,
                                         DType dtype, const ElementReader& reader);

}  // namespace megatron

#pragma once

#include <map>
#include <string>
#include <vector>

#include "megatron/checkpoint/contents.h"
#include "megatron/interchange/megatron/files.h"

// Whole tensors from the shards of tensor-parallel ranks, as Megatron-DeepSpeed divides them.
namespace megatron {

struct DeepSpeedShard {
  std::string file;  // for messages
  Shape shape;
  DType dtype = DType::kFloat32;
  ElementReader read;  // gives the elements, in any shape
};

// Our name of a parameter -> its shards, by tensor-parallel rank.
using DeepSpeedShards = std::map<std::string, std::vector<DeepSpeedShard>>;

// The whole tensor. Tensors that every rank has drift apart there; their mean is read, as BLOOM's
// converter and ds_to_universal do. Throws FormatError for shards that do not fit each other.
StoredTensor joined_shards(const std::string& ours, const Sharding& sharding,
                           const std::vector<DeepSpeedShard>& shards);

}  // namespace megatron

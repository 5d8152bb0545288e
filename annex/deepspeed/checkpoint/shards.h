#pragma once

#include <map>
#include <string>
#include <vector>

#include "megatron/checkpoint/contents.h"
#include "megatron/interchange/megatron/files.h"

// Assembles whole tensors from tensor-parallel shards of Megatron-DeepSpeed.
namespace megatron {

struct DeepSpeedShard {
  std::string file;  // for messages
  Shape shape;
  DType dtype = DType::kFloat32;
  ElementReader read;  // gives the elements, in any shape
};

// Our name of a parameter -> its shards, by tensor-parallel rank.
using DeepSpeedShards = std::map<std::string, std::vector<DeepSpeedShard>>;

// The whole tensor. Replicated tensors drift apart between ranks in Megatron-DeepSpeed; the result
// is their mean, as in BLOOM's converter and ds_to_universal. Throws FormatError for inconsistent
// shards.
StoredTensor joined_shards(const std::string& ours, const Sharding& sharding,
                           const std::vector<DeepSpeedShard>& shards);

}  // namespace megatron

#pragma once

#include <memory>
#include <string>
#include <string_view>

#include "megatron/checkpoint/contents.h"
#include "megatron/interchange/megatron/dist_reader.h"

// State of Megatron Core's distributed optimizer in torch_dist checkpoints, in its default format
// dp_reshardable: flat buffers of each tensor- and pipeline-parallel rank, divided into buckets,
// instead of parameters. For each bucket and kind of state there is one tensor, in pieces that end
// at the ends of parameters and of data-parallel shards; the files do not name the parameters.
// Experts that are divided among other ranks than dense layers have buffers of their own.
namespace megatron {

// True for the name of a bucket.
bool is_dist_bucket(std::string_view name);

// Adds the state in the buckets of all ranks, the number of updates and the loss scale to the
// contents, which have args and weights. The bucket layout computed from args must agree with the
// ends of all pieces, and its main parameters must round to the weights; otherwise returns the
// reason, a clause without a full stop (empty on success). Throws FormatError.
std::string read_dist_buckets(const std::shared_ptr<const DistCheckpoint>& checkpoint,
                              CheckpointContents& contents);

}  // namespace megatron

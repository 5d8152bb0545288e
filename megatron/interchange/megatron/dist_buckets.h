#pragma once

#include <memory>
#include <string>
#include <string_view>

#include "megatron/checkpoint/contents.h"
#include "megatron/interchange/megatron/dist_reader.h"

// State of Megatron Core's distributed optimizer in checkpoints of torch_dist, in its default form,
// dp_reshardable: flat buffers in place of parameters, of each tensor- and pipeline-parallel rank,
// cut into buckets. A bucket and a kind of state are one tensor, in pieces that end where
// parameters and the shares of data-parallel ranks do; nothing in the files names the parameters.
namespace megatron {

// Is it the name of a bucket?
bool is_dist_bucket(std::string_view name);

// Adds the state in the buckets of all ranks to the contents, which have args and weights, and the
// number of updates and the loss scale. Returns why it does not, one clause without an end; empty
// if it does: the layout of the buckets must follow from args, agree with the ends of all pieces,
// and its main parameters must round to the weights. Throws FormatError.
std::string read_dist_buckets(const std::shared_ptr<const DistCheckpoint>& checkpoint,
                              CheckpointContents& contents);

}  // namespace megatron

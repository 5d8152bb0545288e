#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <string>

#include "megatron/core/arg_map.h"
#include "megatron/formats/stored_tensor.h"
#include "megatron/interchange/megatron/files.h"

// The optimizer's state in Megatron-LM's checkpoints, which numbers parameters instead of naming
// them.
namespace megatron {

// Elements after which core_r0.5.0 closes a bucket when it overlaps their reduction.
inline constexpr int64_t kMegatronBucketSize = 40'000'000;

// A rank's shard of a kind of state, of the shape of its parameter.
using StateSink = std::function<void(const std::string& section, const RankParameter& parameter,
                                     DType dtype, const ElementReader& reader)>;

// Puts the number of updates and the loss scale of an optimizer's dictionary into `scalars`, where
// it tells them. Throws Unsupported for groups of parameters with learning rates of their own.
void read_optimizer_numbers(const TorchFile& file, PyValue wrapper,
                            std::map<std::string, ArgMap>& scalars);

// Puts the loss scale of that dictionary into `scalars`.
void read_grad_scaler(const TorchFile& file, PyValue scaler,
                      std::map<std::string, ArgMap>& scalars);

// Gives all state in a rank's files to the sink, tied copies left out, and puts the number of
// updates and the loss scale into `scalars` where the files tell them. REQUIRES: rank.chunks are
// filled. Throws FormatError when state and parameters do not fit, Unsupported.
void read_megatron_optimizer(const RankFiles& rank, const ArgMap& args, const StateSink& sink,
                             std::map<std::string, ArgMap>& scalars);

}  // namespace megatron

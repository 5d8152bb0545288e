#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <string>

#include "megatron/core/arg_map.h"
#include "megatron/formats/stored_tensor.h"
#include "megatron/interchange/megatron/files.h"

// Optimizer state in Megatron-LM's checkpoints, which numbers parameters instead of naming them.
namespace megatron {

// Elements after which core_r0.5.0 closes a bucket if it overlaps gradient reduction.
inline constexpr int64_t kMegatronBucketSize = 40'000'000;

// A rank's shard of one kind of state, in the shape of its parameter.
using StateSink = std::function<void(const std::string& section, const RankParameter& parameter,
                                     DType dtype, const ElementReader& reader)>;

// Copies the number of updates and the loss scale, if present, from an optimizer's dictionary into
// `scalars`. Throws Unsupported for parameter groups with different learning rates.
void read_optimizer_numbers(const TorchFile& file, PyValue wrapper,
                            std::map<std::string, ArgMap>& scalars);

// Puts the loss scale of that dictionary into `scalars`.
void read_grad_scaler(const TorchFile& file, PyValue scaler,
                      std::map<std::string, ArgMap>& scalars);

// Passes all state in a rank's files to the sink, without tied copies, and the number of updates
// and the loss scale, if present, to `scalars`. REQUIRES: rank.chunks are filled. Throws
// FormatError if state and parameters do not match, Unsupported.
void read_megatron_optimizer(const RankFiles& rank, const ArgMap& args, const StateSink& sink,
                             std::map<std::string, ArgMap>& scalars);

}  // namespace megatron

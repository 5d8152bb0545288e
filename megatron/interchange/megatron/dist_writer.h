#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "megatron/checkpoint/contents.h"
#include "megatron/comm/group.h"
#include "megatron/interchange/megatron/writer.h"

namespace megatron {

// Reasons why contents cannot be written as torch_dist, one sentence each. One rank's part
// suffices.
std::vector<std::string> dist_problems(const CheckpointContents& contents);

// Writes <directory>/iter_<iteration> (a release: <directory>/release) in Megatron Core's format
// torch_dist and makes it the latest. Every rank of `world` calls it with its part of the contents,
// and writes only that; together the parts cover every tensor once. Layers are merged, and
// optimizer state has the shapes of parameters, under the names that Megatron Core's optimizers,
// distributed or not, read; so any layout of ranks can load it. common.pt also has this program's
// own data, as "megatron_cpp". `layout` is the saving run's. The files appear atomically. Throws
// ConfigError with all dist_problems(); IoError.
void save_dist_checkpoint(const std::filesystem::path& directory,
                          const CheckpointContents& contents, MegatronLayout layout,
                          const comm::Group& world);

}  // namespace megatron

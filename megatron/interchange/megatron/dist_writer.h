#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "megatron/checkpoint/contents.h"
#include "megatron/comm/group.h"
#include "megatron/interchange/megatron/writer.h"

namespace megatron {

// What keeps contents from being written as torch_dist, one sentence each. A rank's part will do.
std::vector<std::string> dist_problems(const CheckpointContents& contents);

// Writes <directory>/iter_<iteration> (a release: <directory>/release) in Megatron Core's format
// torch_dist and makes it the latest. Every rank of `world` calls it with its part of the contents,
// and writes that alone; together the parts cover every tensor once. Layers are merged, and the
// optimizer's state is in the shape of parameters, under the names that Megatron Core's optimizers,
// distributed or not, look for; so it can be loaded by any ranks. common.pt also has what only this
// program stores, as "megatron_cpp". `layout` is the saving run's. The files appear together, or
// not at all. Throws ConfigError with all dist_problems(); IoError.
void save_dist_checkpoint(const std::filesystem::path& directory,
                          const CheckpointContents& contents, MegatronLayout layout,
                          const comm::Group& world);

}  // namespace megatron

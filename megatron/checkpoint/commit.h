#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>

#include "megatron/checkpoint/directory.h"

namespace megatron {

// Makes <directory>/<name> a checkpoint: `write` puts its files into a directory beside it, which
// is synced and then renamed into place; a checkpoint of the same format that is there already is
// exchanged with it. Then `tracker` becomes the text of the tracker file: until that, the
// checkpoint before is the latest. Whatever `write` throws leaves everything as it was.
//
// Throws IoError, also when something of another format has the name.
void commit_checkpoint(const std::filesystem::path& directory, const std::filesystem::path& name,
                       CheckpointFormat format, const std::string& tracker,
                       const std::function<void(const std::filesystem::path&)>& write);

}  // namespace megatron

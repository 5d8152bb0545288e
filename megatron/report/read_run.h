#pragma once

#include <filesystem>
#include <string>

#include "megatron/report/run_history.h"

namespace megatron::report {

// Reads the logs of a run. Throws IoError for a file that cannot be read, FormatError for one that
// holds no run; both begin with the path.
RunHistory read_run(const std::filesystem::path& path);

}  // namespace megatron::report

#pragma once

#include <string>

#include "megatron/report/run_history.h"

namespace megatron::report {

// Reads the logs of a run: a file, several with commas between them, or a folder. Each is a metrics
// file, a console log, TensorBoard events or a trace; numbers come from the first kind of these
// that the run has, others add those that are missing there. A folder holds one run: the logs in it
// and its subfolders, recognized by their endings and their first bytes.
//
// Throws IoError for a file that cannot be read, FormatError for one that holds no run, and
// ConfigError for a folder with the metrics or the console logs of several.
RunHistory read_run(const std::string& run);

}  // namespace megatron::report

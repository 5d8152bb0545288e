#pragma once

#include <string_view>

#include "megatron/report/run_history.h"

namespace megatron::report {

// Adds the records of --metrics-jsonl (docs/formats/metrics.md) to `history`. Lines that are no
// such record are skipped, as is the last one if it is cut: the run may be writing it. The number
// of skipped lines.
int64_t read_metrics(RunHistory& history, std::string_view text);

}  // namespace megatron::report

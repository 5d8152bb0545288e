#pragma once

#include <string_view>

#include "megatron/report/run_history.h"

namespace megatron::report {

// True if the text begins as a trace of --profile does.
bool is_trace(std::string_view text);

// Sets history.pipeline to the last traced iteration of every rank.
void read_trace(RunHistory& history, std::string_view text);

}  // namespace megatron::report

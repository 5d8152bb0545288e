#pragma once

#include <string_view>

#include "megatron/report/run_history.h"

namespace megatron::report {

// True if the bytes begin with a record of a TensorBoard event file (a TFRecord).
bool is_event_file(std::string_view bytes);

// Adds the scalars and texts of an event file to `history`, up to the first record that is cut or
// damaged. Numbers get the names of docs/formats/metrics.md; the texts of Megatron-LM are the
// settings of the run. A tag "<name> vs samples" behind <name> tells the samples so far.
void read_events(RunHistory& history, std::string_view bytes);

}  // namespace megatron::report

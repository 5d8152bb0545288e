#pragma once

#include <string_view>

#include "megatron/report/run_history.h"

namespace megatron::report {

// Adds what a console log says in Megatron-LM's lines to `history`:
//
//    iteration       10/     100 | consumed samples:           80 | lm loss: 6.1E+00 | ...
//    validation loss at iteration 10 | lm loss value: 6.0E+00 | lm loss PPL: 4.3E+02 |
//   ---- arguments ----, and the lines of settings up to ---- end of arguments ----
//   [Rank 0] (after 1 iterations) memory (MB) | allocated: 65.1 | max allocated: 65.5 | ...
//   > memory plan: parameters 0.3 MiB, gradients 0.3 MiB, ...
//    validation results on LAMBADA | ppl: 3.2E+01 | ...
//
// Other lines, and text before these (a launcher's "[default0]:", a date), are skipped. Numbers get
// the names of docs/formats/metrics.md. Tokens per second follow from the setting seq_length if
// the log has no others.
void read_console(RunHistory& history, std::string_view text);

// The name of a number in docs/formats/metrics.md, from that in a console log or an event file.
std::string_view metric_name(std::string_view name);

}  // namespace megatron::report

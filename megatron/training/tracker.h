#pragma once

#include <cstdint>

#include "megatron/training/console_log.h"

namespace megatron {

// Logs the metrics of a run for a program that shows them. Numbers that cannot be written are
// dropped with a warning (AppendFile).
class Tracker {
 public:
  virtual ~Tracker() = default;
  // The numbers of a log line or of an evaluation, by name, at an iteration.
  virtual void write(int64_t iteration, const NamedValues& values) = 0;
};

}  // namespace megatron

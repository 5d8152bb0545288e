#pragma once

namespace megatron {

// While one lives, SIGTERM (and SIGINT, once) to this process only sets a flag that the training
// loop asks for, so that a checkpoint can be saved; a second SIGINT ends the program as usual.
// Ranks that are threads each have one: the first to come takes the signals over, the last to leave
// gives them back.
class ExitSignals {
 public:
  ExitSignals();
  ~ExitSignals();
  ExitSignals(const ExitSignals&) = delete;
  ExitSignals& operator=(const ExitSignals&) = delete;

  // The number of the signal that this process has received, or 0.
  static int received();
};

// "SIGTERM", "SIGINT"
const char* name_of_signal(int number);

}  // namespace megatron

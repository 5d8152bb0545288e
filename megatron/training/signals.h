#pragma once

namespace megatron {

// While it lives, SIGTERM (and the first SIGINT) to this process only sets a flag. The training
// loop reads the flag, saves a checkpoint and ends; a second SIGINT ends the program as usual.
// Every rank thread has one: the first installs the handlers, the last restores them.
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

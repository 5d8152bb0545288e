#pragma once

namespace megatron {

// While it lives, SIGTERM (and SIGINT, once) only sets a flag that the training loop asks for, so
// that a checkpoint can be saved; a second SIGINT ends the program as usual.
class ExitSignals {
 public:
  ExitSignals();
  ~ExitSignals();
  ExitSignals(const ExitSignals&) = delete;
  ExitSignals& operator=(const ExitSignals&) = delete;

  // "SIGTERM", "SIGINT", or null when none has arrived.
  static const char* received();
};

}  // namespace megatron

#include "megatron/training/signals.h"

#include <csignal>

namespace megatron {
namespace {

// A signal handler can reach nothing but this.
// NOLINTNEXTLINE(cppcoreguidelines-avoid-non-const-global-variables)
volatile std::sig_atomic_t pending_signal = 0;

extern "C" void note_signal(int number) {
  pending_signal = number;
  if (number == SIGINT) std::signal(SIGINT, SIG_DFL);
}

}  // namespace

ExitSignals::ExitSignals() {
  pending_signal = 0;
  std::signal(SIGTERM, note_signal);
  std::signal(SIGINT, note_signal);
}

ExitSignals::~ExitSignals() {
  std::signal(SIGTERM, SIG_DFL);
  std::signal(SIGINT, SIG_DFL);
}

const char* ExitSignals::received() {
  if (pending_signal == SIGTERM) return "SIGTERM";
  if (pending_signal == SIGINT) return "SIGINT";
  return nullptr;
}

}  // namespace megatron

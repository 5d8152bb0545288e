#include "megatron/training/signals.h"

#include <atomic>
#include <csignal>
#include <mutex>

namespace megatron {
namespace {

// The only state that the signal handler uses.
// NOLINTNEXTLINE(cppcoreguidelines-avoid-non-const-global-variables)
std::atomic<int> pending_signal = 0;
static_assert(std::atomic<int>::is_always_lock_free, "a signal handler takes no lock");

extern "C" void note_signal(int number) {
  pending_signal = number;
  if (number == SIGINT) std::signal(SIGINT, SIG_DFL);
}

// Signals belong to the process, so watchers are counted for the process.
struct Watchers {
  std::mutex mutex;
  int count = 0;
};
Watchers& watchers() {
  static Watchers instance;
  return instance;
}

}  // namespace

ExitSignals::ExitSignals() {
  const std::lock_guard lock(watchers().mutex);
  if (watchers().count++ > 0) return;
  pending_signal = 0;
  std::signal(SIGTERM, note_signal);
  std::signal(SIGINT, note_signal);
}

ExitSignals::~ExitSignals() {
  const std::lock_guard lock(watchers().mutex);
  if (--watchers().count > 0) return;
  std::signal(SIGTERM, SIG_DFL);
  std::signal(SIGINT, SIG_DFL);
}

int ExitSignals::received() { return pending_signal; }

const char* name_of_signal(int number) { return number == SIGINT ? "SIGINT" : "SIGTERM"; }

}  // namespace megatron

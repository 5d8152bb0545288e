#include "megatron/core/signal_cleanup.h"

#include <signal.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cstdint>
#include <cstring>
#include <mutex>
#include <string_view>

namespace megatron {
namespace {

enum class SlotState : int { kFree, kChanging, kFilled };

// A record that a signal handler may read at any moment: no allocation and no lock.
struct Slot {
  std::atomic<SlotState> state{SlotState::kFree};
  std::atomic<const std::byte*> begin{nullptr};  // set for a mapping
  std::atomic<size_t> size{0};
  std::array<char, 1024> path{};

  // Compare-and-swap of a slot's state; true if this thread made the transition.
  bool change(SlotState from, SlotState to) { return state.compare_exchange_strong(from, to); }
};

// Threads add and remove one at a time. A handler cannot wait for them, so it takes each slot that
// it reads: after that no thread changes the slot, and the process ends.
template <size_t kCount>
class SlotTable {
 public:
  void add(const std::filesystem::path& path, std::span<const std::byte> bytes = {}) {
    const std::string& text = path.native();
    if (text.size() >= slots_.front().path.size()) return;
    const std::lock_guard lock(mutex_);
    for (Slot& slot : slots_) {
      if (!slot.change(SlotState::kFree, SlotState::kChanging)) continue;
      std::memcpy(slot.path.data(), text.c_str(), text.size() + 1);
      slot.begin = bytes.data();
      slot.size = bytes.size();
      slot.state = SlotState::kFilled;
      return;
    }
  }

  template <class Matches>
  void remove(const Matches& matches) {
    const std::lock_guard lock(mutex_);
    for (Slot& slot : slots_) {
      if (slot.state != SlotState::kFilled || !matches(slot)) continue;
      slot.change(SlotState::kFilled, SlotState::kFree);
      return;
    }
  }

  // For handlers.
  template <class Use>
  void take_each(const Use& use) {
    for (Slot& slot : slots_) {
      if (slot.change(SlotState::kFilled, SlotState::kChanging)) use(slot);
    }
  }

 private:
  std::mutex mutex_;
  std::array<Slot, kCount> slots_;
};

// Process-wide, because signal handlers take no arguments.
SlotTable<64> unfinished_files;
SlotTable<512> mappings;

void say(std::string_view text) {
  const ssize_t ignored = ::write(STDERR_FILENO, text.data(), text.size());
  static_cast<void>(ignored);
}

void remove_unfinished_files(int signal) {
  unfinished_files.take_each([](const Slot& slot) { ::unlink(slot.path.data()); });
  ::signal(signal, SIG_DFL);
  ::raise(signal);
}

void name_mapped_file(int signal, siginfo_t* info, void*) {
  const auto* at = static_cast<const std::byte*>(info->si_addr);
  mappings.take_each([&](const Slot& slot) {
    const std::byte* begin = slot.begin;
    if (at < begin || at >= begin + slot.size.load()) return;
    say("error: ");
    say(slot.path.data());
    say(": cannot read: the file became shorter while it was in use, or its disk failed; "
        "restore the file and start again\n");
  });
  ::signal(signal, SIG_DFL);  // repeating the access ends the process
}

void install(int signal, void (*handle)(int), void (*handle_fault)(int, siginfo_t*, void*)) {
  struct sigaction before {};
  if (::sigaction(signal, nullptr, &before) != 0 || before.sa_handler != SIG_DFL) return;
  struct sigaction action {};
  ::sigemptyset(&action.sa_mask);
  if (handle_fault != nullptr) {
    action.sa_sigaction = handle_fault;
    action.sa_flags = SA_SIGINFO;
  } else {
    action.sa_handler = handle;
  }
  ::sigaction(signal, &action, nullptr);
}

}  // namespace

void clean_up_on_signals() {
  for (const int signal : {SIGTERM, SIGINT, SIGHUP}) {
    install(signal, remove_unfinished_files, nullptr);
  }
  install(SIGBUS, nullptr, name_mapped_file);
  install(SIGXFSZ, SIG_IGN, nullptr);
}

void remember_unfinished(const std::filesystem::path& path) {
  std::error_code ignored;
  const std::filesystem::path absolute = std::filesystem::absolute(path, ignored);
  unfinished_files.add(ignored ? path : absolute);
}

void forget_unfinished(const std::filesystem::path& path) {
  std::error_code ignored;
  const std::filesystem::path absolute = std::filesystem::absolute(path, ignored);
  const std::string& text = ignored ? path.native() : absolute.native();
  unfinished_files.remove([&](const Slot& slot) { return text == slot.path.data(); });
}

void remember_mapping(std::span<const std::byte> bytes, const std::filesystem::path& path) {
  mappings.add(path, bytes);
}

void forget_mapping(const std::byte* begin) {
  mappings.remove([&](const Slot& slot) { return slot.begin == begin; });
}

}  // namespace megatron

#include "megatron/core/stacks.h"

#include <cxxabi.h>
#include <dlfcn.h>
#include <elf.h>
#include <execinfo.h>
#include <fmt/format.h>
#include <link.h>
#include <signal.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <map>
#include <memory>
#include <mutex>
#include <span>
#include <thread>
#include <utility>
#include <vector>

#include "megatron/core/error.h"
#include "megatron/core/file.h"

namespace megatron {
namespace {

using Clock = std::chrono::steady_clock;

constexpr int kMaxCalls = 64;
constexpr size_t kMaxName = 160;
constexpr auto kForAnswer = std::chrono::milliseconds(300);
constexpr auto kForAllAnswers = std::chrono::seconds(3);

// The answer of the thread that was asked last. One thread asks at a time.
struct AskedThread {
  std::atomic<pid_t> thread{0};  // that is asked; 0: nobody
  std::atomic<bool> is_there{false};
  bool is_stuck = false;  // the thread began to answer and did not finish; no other is asked
  std::array<void*, kMaxCalls> calls{};
  int num_calls = 0;
};
AskedThread& asked_thread() {
  static AskedThread asked;
  return asked;
}

// The signals' handler. backtrace() allocates in its first call only, which has been made.
void answer(int) {
  AskedThread& shared = asked_thread();
  const int error = errno;
  auto self = static_cast<pid_t>(::syscall(SYS_gettid));
  if (shared.thread.compare_exchange_strong(self, 0)) {
    shared.num_calls = ::backtrace(shared.calls.data(), kMaxCalls);
    shared.is_there = true;
  }
  errno = error;
}

// The first real-time signal without another handler: SIGUSR1 and SIGUSR2 belong to job schedulers
// and to programs that embed this library. -1 if there is none.
int signal_for_asking() {
  for (int signal = SIGRTMIN; signal <= SIGRTMAX; ++signal) {
    struct sigaction known {};
    if (::sigaction(signal, nullptr, &known) != 0) continue;
    if (known.sa_handler == SIG_DFL || known.sa_handler == answer) return signal;
  }
  return -1;
}

// The functions of this program, from the symbol table of its file: the dynamic one lacks most.
class ProgramNames {
 public:
  ProgramNames() {
    ::dl_iterate_phdr(
        [](dl_phdr_info* info, size_t, void* base) {
          *static_cast<uintptr_t*>(base) = info->dlpi_addr;
          return 1;  // the program is the first
        },
        &base_);
    try {
      file_ = std::make_unique<MappedFile>("/proc/self/exe");
      read();
    } catch (const Error&) {
      functions_.clear();  // without its file the program's calls are told by their addresses
    }
  }

  // Null if the address is in no function of the program.
  const char* name_of(const void* address) const {
    const uintptr_t at = reinterpret_cast<uintptr_t>(address) - base_;
    const auto next = functions_.upper_bound(at);
    if (next == functions_.begin()) return nullptr;
    const auto& [begin, function] = *std::prev(next);
    return at < begin + function.bytes ? function.name : nullptr;
  }

 private:
  struct Function {
    uintptr_t bytes = 0;
    const char* name = nullptr;
  };

  template <class T>
  std::span<const T> items(uint64_t offset, uint64_t bytes) const {
    const std::span<const std::byte> all = file_->bytes();
    if (offset > all.size() || bytes > all.size() - offset) return {};
    return {reinterpret_cast<const T*>(all.data() + offset), bytes / sizeof(T)};
  }

  void read() {
    const auto header = items<Elf64_Ehdr>(0, sizeof(Elf64_Ehdr));
    if (header.empty() || std::memcmp(header[0].e_ident, ELFMAG, SELFMAG) != 0) return;
    const auto sections =
        items<Elf64_Shdr>(header[0].e_shoff, header[0].e_shnum * sizeof(Elf64_Shdr));
    for (const Elf64_Shdr& section : sections) {
      if (section.sh_type != SHT_SYMTAB || section.sh_link >= sections.size()) continue;
      const Elf64_Shdr& texts = sections[section.sh_link];
      const auto names = items<char>(texts.sh_offset, texts.sh_size);
      if (names.empty() || names.back() != '\0') continue;
      for (const Elf64_Sym& symbol : items<Elf64_Sym>(section.sh_offset, section.sh_size)) {
        const bool is_function = ELF64_ST_TYPE(symbol.st_info) == STT_FUNC && symbol.st_size > 0;
        if (!is_function || symbol.st_name >= names.size()) continue;
        functions_[symbol.st_value] = {symbol.st_size, names.data() + symbol.st_name};
      }
    }
  }

  uintptr_t base_ = 0;
  std::unique_ptr<MappedFile> file_;
  std::map<uintptr_t, Function> functions_;
};

std::string demangled(const char* name) {
  int status = 0;
  const std::unique_ptr<char, void (*)(void*)> text(
      abi::__cxa_demangle(name, nullptr, nullptr, &status), std::free);
  std::string result = status == 0 ? text.get() : name;
  if (result.size() > kMaxName) result = result.substr(0, kMaxName) + " ...";
  return result;
}

std::string text_of_call(const ProgramNames& program, void* address) {
  // A return address may be behind the end of a function that does not return.
  auto* const call = static_cast<std::byte*>(address) - 1;
  if (const char* const name = program.name_of(call)) return demangled(name);
  Dl_info info{};
  if (::dladdr(call, &info) == 0 || info.dli_fname == nullptr) return fmt::format("{}", address);
  const std::string file = std::filesystem::path(info.dli_fname).filename().string();
  if (info.dli_sname != nullptr) return fmt::format("{} in {}", demangled(info.dli_sname), file);
  return fmt::format("{}+{:#x}", file, call - static_cast<std::byte*>(info.dli_fbase));
}

std::vector<pid_t> threads_of_this_process() {
  std::vector<pid_t> threads;
  std::error_code ignored;
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/task", ignored)) {
    threads.push_back(std::atoi(entry.path().filename().c_str()));
  }
  std::sort(threads.begin(), threads.end());
  return threads;
}

std::string name_of_thread(pid_t thread) {
  std::ifstream file(fmt::format("/proc/self/task/{}/comm", thread));
  std::string name;
  std::getline(file, name);
  return name;
}

bool is_there_by(const std::atomic<bool>& is_there, Clock::time_point end) {
  while (!is_there && Clock::now() < end) {
    std::this_thread::sleep_for(std::chrono::microseconds(100));
  }
  return is_there;
}

// The calls of a thread without those of the signal's handler; empty if it does not answer in time.
std::vector<void*> calls_of(pid_t thread, int signal, Clock::time_point end) {
  AskedThread& shared = asked_thread();
  if (shared.is_stuck) return {};
  shared.is_there = false;
  shared.thread = thread;
  const bool is_sent = ::syscall(SYS_tgkill, ::getpid(), thread, signal) == 0;
  if (!is_sent || !is_there_by(shared.is_there, std::min(Clock::now() + kForAnswer, end))) {
    pid_t asked = thread;
    if (shared.thread.compare_exchange_strong(asked, 0)) return {};
    shared.is_stuck = !is_there_by(shared.is_there, Clock::now() + kForAnswer);
    if (shared.is_stuck) return {};
  }
  constexpr size_t kHandler = 2;  // answer(), and the frame that the kernel makes
  const std::span<void* const> calls(shared.calls.data(), static_cast<size_t>(shared.num_calls));
  const auto kept = calls.subspan(std::min(kHandler, calls.size()));
  return {kept.begin(), kept.end()};
}

}  // namespace

std::string stacks_of_all_threads() {
  static std::mutex mutex;
  const std::lock_guard lock(mutex);
  asked_thread();  // before a handler needs it
  std::array<void*, kMaxCalls> own{};
  const int num_own = ::backtrace(own.data(), kMaxCalls);  // the first call loads a library
  struct sigaction action {};
  action.sa_handler = answer;
  action.sa_flags = SA_RESTART;
  const int signal = signal_for_asking();
  ::sigaction(signal, &action, nullptr);

  const Clock::time_point end = Clock::now() + kForAllAnswers;
  const auto self = static_cast<pid_t>(::syscall(SYS_gettid));
  std::map<std::vector<void*>, std::vector<pid_t>> threads;  // by their calls
  for (const pid_t thread : threads_of_this_process()) {
    threads[thread == self ? std::vector<void*>(own.begin() + 1, own.begin() + num_own)
                           : calls_of(thread, signal, end)]
        .push_back(thread);
  }
  std::map<pid_t, const std::vector<void*>*> order;
  for (const auto& [calls, sharers] : threads) order[sharers.front()] = &calls;

  const ProgramNames program;
  std::string text;
  for (const auto& [first, calls] : order) {
    const std::vector<pid_t>& sharers = threads.at(*calls);
    text += fmt::format("thread {} ({})", first, name_of_thread(first));
    if (sharers.size() > 1) text += fmt::format(" and {} more", sharers.size() - 1);
    text += calls->empty() ? ": does not answer\n" : ":\n";
    for (void* const call : *calls) text += "  " + text_of_call(program, call) + "\n";
  }
  return text;
}

}  // namespace megatron

#include "megatron/core/turns.h"

#include <sys/mman.h>
#include <ucontext.h>
#include <unistd.h>

#include <cerrno>
#include <cstddef>
#include <exception>
#include <system_error>
#include <vector>

#include "megatron/core/error.h"

#if defined(__has_feature)
#if __has_feature(address_sanitizer)
#define MG_ASAN_FIBERS 1
#endif
#if __has_feature(thread_sanitizer)
#define MG_TSAN_FIBERS 1
#endif
#endif
#if defined(__SANITIZE_ADDRESS__)
#define MG_ASAN_FIBERS 1
#endif
#if defined(__SANITIZE_THREAD__)
#define MG_TSAN_FIBERS 1
#endif
#if defined(MG_ASAN_FIBERS)
#include <sanitizer/asan_interface.h>
#include <sanitizer/common_interface_defs.h>
#endif
#if defined(MG_TSAN_FIBERS)
#include <sanitizer/tsan_interface.h>
#endif

namespace megatron {
namespace {

constexpr size_t kStackBytes = size_t{8} << 20;  // address space; pages are taken when used

// Thrown by end_turn() to end a function whose other one has failed.
struct OtherFailed {};

// Memory for the second function's stack, above a page that ends an overflow.
class Stack {
 public:
  Stack() : guard_(static_cast<size_t>(::sysconf(_SC_PAGESIZE))) {
    memory_ = ::mmap(nullptr, guard_ + kStackBytes, PROT_READ | PROT_WRITE,
                     MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_STACK, -1, 0);
    if (memory_ == MAP_FAILED || ::mprotect(memory_, guard_, PROT_NONE) != 0) {
      throw std::system_error(errno, std::generic_category(), "a stack of 8 MiB");
    }
  }
  ~Stack() { ::munmap(memory_, guard_ + kStackBytes); }
  Stack(const Stack&) = delete;
  Stack& operator=(const Stack&) = delete;

  void* begin() const { return static_cast<std::byte*>(memory_) + guard_; }

 private:
  size_t guard_;
  void* memory_ = nullptr;
};

// A function's stack, as sanitizers name it.
struct Sanitized {
#if defined(MG_ASAN_FIBERS)
  void* fake_stack = nullptr;
  const void* bottom = nullptr;
  size_t size = 0;
#endif
#if defined(MG_TSAN_FIBERS)
  void* fiber = nullptr;
#endif
};

struct Function {
  ucontext_t context = {};
  Sanitized sanitized;
  const std::function<void()>* run = nullptr;
  bool has_begun = false;
  bool has_ended = false;
};

class Turns {
 public:
  Turns(const std::function<void()>& first, const std::function<void()>& second,
        const Stack& stack);
  ~Turns();
  Turns(const Turns&) = delete;
  Turns& operator=(const Turns&) = delete;

  void run();
  void end_turn();
  void start_other();

 private:
  static void run_second();
  Function& own() { return functions_[current_]; }
  Function& other() { return functions_[1 - current_]; }
  // Runs own() to its end, or to the exception that ends it.
  void finish_own() noexcept;
  // Goes on with the other one until it comes back.
  void change();

  Function functions_[2];
  size_t current_ = 0;
  std::exception_ptr error_;
};

// Ranks are threads, and turns are a mode of a thread, as grad_enabled() is: callers between
// take_turns() and end_turn() need not pass it on.
// NOLINTNEXTLINE(cppcoreguidelines-avoid-non-const-global-variables): no caller could pass it
thread_local std::vector<TurnObserver*> observers;
// NOLINTNEXTLINE(cppcoreguidelines-avoid-non-const-global-variables): no caller could pass it
thread_local Turns* turns = nullptr;

Turns::Turns(const std::function<void()>& first, const std::function<void()>& second,
             const Stack& stack) {
  functions_[0].run = &first;
  functions_[0].has_begun = true;
  functions_[1].run = &second;
  ucontext_t& context = functions_[1].context;
  if (::getcontext(&context) != 0) {
    throw std::system_error(errno, std::generic_category(), "getcontext");
  }
  context.uc_stack.ss_sp = stack.begin();
  context.uc_stack.ss_size = kStackBytes;
  context.uc_link = nullptr;  // it never returns
  ::makecontext(&context, run_second, 0);
#if defined(MG_ASAN_FIBERS)
  functions_[1].sanitized.bottom = stack.begin();
  functions_[1].sanitized.size = kStackBytes;
  __asan_unpoison_memory_region(stack.begin(), kStackBytes);  // the last function never returned
#endif
#if defined(MG_TSAN_FIBERS)
  functions_[0].sanitized.fiber = __tsan_get_current_fiber();
  functions_[1].sanitized.fiber = __tsan_create_fiber(0);
#endif
}

Turns::~Turns() {
#if defined(MG_TSAN_FIBERS)
  __tsan_destroy_fiber(functions_[1].sanitized.fiber);
#endif
}

void Turns::finish_own() noexcept {
  try {
    (*own().run)();
  } catch (const OtherFailed&) {
    // The error is known.
  } catch (...) {
    if (error_ == nullptr) error_ = std::current_exception();
  }
  own().has_ended = true;
}

void Turns::run_second() {
  Turns& all = *turns;
#if defined(MG_ASAN_FIBERS)
  Sanitized& first = all.other().sanitized;
  __sanitizer_finish_switch_fiber(nullptr, &first.bottom, &first.size);
#endif
  all.finish_own();
  all.change();
}

void Turns::run() {
  for (TurnObserver* const observer : observers) observer->begin_turns();
  finish_own();
  // A second function that has not begun does not begin after an error.
  if (error_ != nullptr && !other().has_begun) other().has_ended = true;
  other().has_begun = true;
  if (!other().has_ended) change();  // until its end, since this one has ended
  if (error_ != nullptr) std::rethrow_exception(error_);
}

void Turns::change() {
  Function& from = own();
  Function& to = other();
  for (TurnObserver* const observer : observers) observer->change_turn();
  current_ = 1 - current_;
#if defined(MG_ASAN_FIBERS)
  // A function that has ended and whose stack goes has no fake stack to keep.
  const bool leaves = from.has_ended && &from == &functions_[1];
  __sanitizer_start_switch_fiber(leaves ? nullptr : &from.sanitized.fake_stack, to.sanitized.bottom,
                                 to.sanitized.size);
#endif
#if defined(MG_TSAN_FIBERS)
  __tsan_switch_to_fiber(to.sanitized.fiber, 0);
#endif
  ::swapcontext(&from.context, &to.context);
#if defined(MG_ASAN_FIBERS)
  __sanitizer_finish_switch_fiber(from.sanitized.fake_stack, nullptr, nullptr);
#endif
}

void Turns::end_turn() {
  if (!other().has_begun || other().has_ended) return;
  change();
  if (error_ != nullptr) throw OtherFailed();
}

void Turns::start_other() {
  other().has_begun = true;
  end_turn();
}

}  // namespace

TurnObserver::TurnObserver() { observers.push_back(this); }
TurnObserver::~TurnObserver() { std::erase(observers, this); }

void take_turns(const std::function<void()>& first, const std::function<void()>& second) {
  invariant(turns == nullptr, "two functions of a thread take turns at a time");
  thread_local const Stack stack;  // kept, since a training takes turns many times a step
  Turns all(first, second, stack);
  turns = &all;
  try {
    all.run();
  } catch (...) {
    turns = nullptr;
    throw;
  }
  turns = nullptr;
}

void end_turn() {
  if (turns != nullptr) turns->end_turn();
}

void start_other() {
  if (turns != nullptr) turns->start_other();
}

bool takes_turns() { return turns != nullptr; }

}  // namespace megatron

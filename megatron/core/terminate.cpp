#include "megatron/core/terminate.h"

#include <unistd.h>

#include <exception>
#include <new>
#include <string_view>

#include "megatron/core/exit_code.h"

namespace megatron {
namespace {

void write_error(std::string_view text, std::string_view remedy = {}) {
  for (const std::string_view part :
       {std::string_view("error: "), text, remedy, std::string_view("\n")}) {
    if (::write(STDERR_FILENO, part.data(), part.size()) < 0) return;
  }
}

[[noreturn]] void explain_and_exit() {
  constexpr std::string_view kRemedy =
      "; the program cannot continue: a library failed, perhaps on a damaged file, or this is a "
      "bug";
  try {
    if (const std::exception_ptr current = std::current_exception()) {
      std::rethrow_exception(current);
    }
    write_error("std::terminate was called", kRemedy);
  } catch (const std::bad_alloc&) {
    write_error(kOutOfMemory);
  } catch (const std::exception& error) {
    write_error(error.what(), kRemedy);
  } catch (...) {
    write_error("an exception without text", kRemedy);
  }
  ::_exit(kExitFault);
}

}  // namespace

void explain_uncaught_exceptions() { std::set_terminate(explain_and_exit); }

}  // namespace megatron

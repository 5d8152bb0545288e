#pragma once

namespace megatron {

// From now on an uncaught exception in any thread ends the process with "error: ..." on standard
// error and exit code 1, instead of the runtime's message and SIGABRT. Does not allocate.
void explain_uncaught_exceptions();

// The message for exhausted memory.
inline constexpr const char* kOutOfMemory =
    "out of memory; use a smaller model, batch or sequence, or train for fewer iterations";

}  // namespace megatron

#include "megatron/core/terminate.h"
#include "megatron/program/commands.h"

namespace {

using Initialiser = void (*)(int, char**, char**);

void explain_early(int, char**, char**) { megatron::explain_uncaught_exceptions(); }

// Before the initialisers of libraries, which may run out of memory as well.
[[gnu::section(".preinit_array"), gnu::used]] const Initialiser kExplainEarly = explain_early;

}  // namespace

int main(int argc, char** argv) {
  return megatron::cli::run_program(argc, argv, megatron::cli::commands());
}

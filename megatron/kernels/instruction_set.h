#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <string_view>

// A build with MG_CPU_ARCH=portable has the CPU kernels for several instruction sets. When the
// program starts, before main(), or a library is loaded, it takes the last one that the processor
// has, or the one that the environment variable MEGATRON_CPU names; then oneDNN is limited to that
// one, too.
namespace megatron::kernels {

// The instruction set of the CPU kernels: avx2, avx512 or avx512-bf16, where oneDNN may use AMX
// besides; in other builds the value of MG_CPU_ARCH, such as native.
std::string_view instruction_set();

// Throws ConfigError unless MEGATRON_CPU is unset or names an instruction set of the program that
// the processor has. Until then a wrong value has no effect.
void expect_possible_instruction_set();

// The sentence of that error, empty if there is none, for a value of MEGATRON_CPU and the
// instruction sets of a processor; none of them: the build has only one, MG_CPU_ARCH.
std::string problem_of_instruction_set(std::string_view asked,
                                       std::span<const std::string_view> supported);

}  // namespace megatron::kernels

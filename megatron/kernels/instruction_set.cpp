#include "megatron/kernels/instruction_set.h"

#include <algorithm>
#include <cstdlib>

#include "megatron/core/error.h"
#include "megatron/core/printable.h"

#if defined(MG_CPU_VARIANTS)
#include <oneapi/dnnl/dnnl.h>
#include <unistd.h>

#include <array>

// cmake/variant_table.awk
extern "C" {
extern const void* mg_cpu_functions[];
extern const void* const mg_cpu_variants[];
extern const size_t mg_cpu_num_functions;
void mg_choose_instruction_set();
}
#endif

namespace megatron::kernels {
namespace {

const char* asked_instruction_set() {
  const char* const asked = std::getenv("MEGATRON_CPU");
  return asked == nullptr || *asked == '\0' ? nullptr : asked;
}

#if defined(MG_CPU_VARIANTS)

struct Variant {
  std::string_view name;
  dnnl_cpu_isa_t onednn;
};
constexpr std::array kVariants = {Variant{"avx2", dnnl_cpu_isa_avx2},
                                  Variant{"avx512", dnnl_cpu_isa_avx512_core},
                                  Variant{"avx512-bf16", dnnl_cpu_isa_all}};
constexpr std::array kNames = {kVariants[0].name, kVariants[1].name, kVariants[2].name};

size_t num_supported() {
  __builtin_cpu_init();
  if (!__builtin_cpu_supports("x86-64-v3")) return 0;
  if (!__builtin_cpu_supports("x86-64-v4")) return 1;
  return __builtin_cpu_supports("avx512bf16") ? 3 : 2;
}

size_t chosen_variant = 0;

#endif

}  // namespace

#if defined(MG_CPU_VARIANTS)
// Before the initialisers of the program, which are compiled for AVX2. The table refers to it, so
// that a library or program with a kernel has it, too.
extern "C" [[gnu::constructor(101)]] void mg_choose_instruction_set() {
  const size_t supported = num_supported();
  if (supported == 0) {
    constexpr std::string_view kMessage =
        "error: this processor has no AVX2, which this program needs; build it from source there, "
        "with the preset cpu\n";
    [[maybe_unused]] const auto written = ::write(2, kMessage.data(), kMessage.size());
    ::_exit(2);
  }
  chosen_variant = supported - 1;
  const char* const asked = asked_instruction_set();
  for (size_t i = 0; asked != nullptr && i < supported; ++i) {
    if (kNames[i] != asked) continue;
    chosen_variant = i;
    dnnl_set_max_cpu_isa(kVariants[i].onednn);
  }
  std::copy_n(mg_cpu_variants + chosen_variant * mg_cpu_num_functions, mg_cpu_num_functions,
              mg_cpu_functions);
}

std::string_view instruction_set() { return kNames[chosen_variant]; }
#else
std::string_view instruction_set() { return MG_CPU_ARCH; }
#endif

std::string problem_of_instruction_set(std::string_view asked,
                                       std::span<const std::string_view> supported) {
  const std::string given = "environment variable MEGATRON_CPU is " + printable(asked);
  if (supported.empty()) {
    return given + ", but this program has the CPU kernels only for MG_CPU_ARCH=" MG_CPU_ARCH
                   "; unset it, or build the preset package";
  }
  if (std::find(supported.begin(), supported.end(), asked) != supported.end()) return "";
  std::string names;
  for (const std::string_view name : supported) {
    names.append(names.empty() ? "" : ", ").append(name);
  }
  return given + ", which the CPU kernels or this processor do not have; unset it or use one of " +
         names;
}

void expect_possible_instruction_set() {
  const char* const asked = asked_instruction_set();
  if (asked == nullptr) return;
  std::span<const std::string_view> supported;
#if defined(MG_CPU_VARIANTS)
  supported = std::span(kNames).first(num_supported());
#endif
  const std::string problem = problem_of_instruction_set(asked, supported);
  if (!problem.empty()) throw ConfigError(problem);
}

}  // namespace megatron::kernels

#include "megatron/kernels/instruction_set.h"

#include <gtest/gtest.h>

#include <array>

namespace megatron::kernels {
namespace {

constexpr std::array<std::string_view, 2> kOlder = {"avx2", "avx512"};

TEST(InstructionSet, OnlyOnesOfTheProcessorCanBeChosen) {
  EXPECT_EQ(problem_of_instruction_set("avx2", kOlder), "");
  EXPECT_EQ(problem_of_instruction_set("avx512", kOlder), "");
  EXPECT_EQ(problem_of_instruction_set("avx512-bf16", kOlder),
            "environment variable MEGATRON_CPU is avx512-bf16, which the CPU kernels or this "
            "processor do not have; unset it or use one of avx2, avx512");
  EXPECT_NE(problem_of_instruction_set("AVX2", kOlder), "");
}

TEST(InstructionSet, ABuildForOneKindOfProcessorHasNoChoice) {
  const std::string problem = problem_of_instruction_set("avx2", {});
  EXPECT_EQ(problem.find("environment variable MEGATRON_CPU is avx2, but this program has the CPU "
                         "kernels only for MG_CPU_ARCH="),
            0u);
}

}  // namespace
}  // namespace megatron::kernels

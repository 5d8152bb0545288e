#include "megatron/kernels/cuda/matmul_search.h"

#include <fmt/format.h>

#include <charconv>

#include "megatron/kernels/cuda/algorithm_search.h"

namespace megatron::kernels::cuda {
namespace {

constexpr size_t kHexDigits = 16;  // of a word

}  // namespace

std::vector<double> measured_ms(cublasLtHandle_t handle, MatmulPlan plan,
                                std::span<const cublasLtMatmulAlgo_t> algorithms,
                                const MatmulOperands& operands, void* workspace, int rounds,
                                Stream stream) {
  return measured_ms(
      algorithms.size(),
      [&](size_t i) {
        plan.algorithm = algorithms[i];
        return launch(handle, plan, operands, workspace, stream) == CUBLAS_STATUS_SUCCESS;
      },
      rounds, stream);
}

std::string encoded(const cublasLtMatmulAlgo_t& algorithm) {
  std::string text;
  for (const uint64_t word : algorithm.data) text += fmt::format("{:016x}", word);
  return text;
}

std::optional<cublasLtMatmulAlgo_t> decoded(std::string_view text) {
  cublasLtMatmulAlgo_t algorithm{};
  if (text.size() != std::size(algorithm.data) * kHexDigits) return std::nullopt;
  for (size_t i = 0; i < std::size(algorithm.data); ++i) {
    const char* const begin = text.data() + i * kHexDigits;
    const auto [end, error] = std::from_chars(begin, begin + kHexDigits, algorithm.data[i], 16);
    if (error != std::errc() || end != begin + kHexDigits) return std::nullopt;
  }
  return algorithm;
}

}  // namespace megatron::kernels::cuda

#include "megatron/kernels/cuda/matmul_search.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <limits>

#include "megatron/device/stream.h"

namespace megatron::kernels::cuda {
namespace {

// The relative gain over the first offer that counts as faster.
constexpr double kNoise = 0.01;
constexpr size_t kHexDigits = 16;  // of a word

}  // namespace

std::vector<double> measured_ms(cublasLtHandle_t handle, MatmulPlan plan,
                                std::span<const cublasLtMatmulAlgo_t> algorithms,
                                const MatmulOperands& operands, void* workspace, int rounds,
                                Stream stream) {
  const size_t count = algorithms.size();
  std::vector<double> least(count, std::numeric_limits<double>::infinity());
  std::vector<bool> is_refused(count, false);
  // Each round times all algorithms, so that a change of clocks affects all of them. Nothing waits
  // within a round, and one product is queued ahead, so that events measure the device's work
  // alone.
  std::vector<Event> events;
  for (size_t i = 0; i <= count; ++i) events.emplace_back(stream.device);
  for (int round = 0; round <= rounds; ++round) {
    plan.algorithm = algorithms[0];
    launch(handle, plan, operands, workspace, stream);
    events[0].record(stream);
    for (size_t i = 0; i < count; ++i) {
      plan.algorithm = algorithms[i];
      if (!is_refused[i]) {
        is_refused[i] = launch(handle, plan, operands, workspace, stream) != CUBLAS_STATUS_SUCCESS;
      }
      events[i + 1].record(stream);
    }
    events[count].synchronize();
    if (round == 0) continue;  // warm-up: loads code and raises clocks
    for (size_t i = 0; i < count; ++i) {
      if (!is_refused[i]) least[i] = std::min(least[i], events[i + 1].ms_since(events[i]));
    }
  }
  return least;
}

size_t fastest(std::span<const double> ms) {
  const auto best = std::min_element(ms.begin(), ms.end());
  if (*best > ms.front() * (1 - kNoise)) return 0;
  return static_cast<size_t>(best - ms.begin());
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

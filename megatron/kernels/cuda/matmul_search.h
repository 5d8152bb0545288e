#pragma once

#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "megatron/kernels/cuda/matmul_plan.h"

namespace megatron::kernels::cuda {

// The time of a product in ms with each algorithm: the minimum of `rounds` after a warm-up.
// Infinite if cuBLASLt refuses. Overwrites d; waits for the device.
std::vector<double> measured_ms(cublasLtHandle_t handle, MatmulPlan plan,
                                std::span<const cublasLtMatmulAlgo_t> algorithms,
                                const MatmulOperands& operands, void* workspace, int rounds,
                                Stream stream);

// An algorithm as text, valid for one version of cuBLAS.
std::string encoded(const cublasLtMatmulAlgo_t& algorithm);
std::optional<cublasLtMatmulAlgo_t> decoded(std::string_view text);

}  // namespace megatron::kernels::cuda

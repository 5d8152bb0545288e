#pragma once

#include <gtest/gtest.h>
#include <stdlib.h>

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "megatron/device/stream.h"
#include "megatron/tensor/tensor.h"
#include "tests/support/device_under_test.h"
#include "tests/support/tensors.h"

// Compares every CUDA kernel with its CPU twin: both get the same tensors, and afterwards all of
// them, including inputs, must agree.
namespace megatron {

// A test that needs a GPU; skipped without one.
class CudaTest : public testing::Test {
 protected:
  void SetUp() override {
    if (!has_device_under_test()) GTEST_SKIP() << "no GPU: not run";
    use_device(gpu());
  }

  static Device gpu() { return {DeviceType::kCuda, 0}; }
  static Stream stream() { return stream_under_test(); }

  // Calls a kernel with the tensors, which all live on `stream`. Undefined ones stay undefined.
  using Run = std::function<void(std::vector<Tensor>& tensors, Stream stream)>;

  struct TwinOptions {
    // For floating-point tensors; none: the tolerance of each tensor's dtype. All others are exact.
    std::optional<Tolerance> tolerance = std::nullopt;
    // Elements by which the GPU's tensors miss the alignment for 16-byte accesses.
    int64_t misaligned_by = 0;
    std::string what = "";
  };

  // Fails the test if the tensors differ after `run` on either device, or if the GPU wrote outside
  // of them.
  void expect_twins(const std::vector<Tensor>& tensors, const Run& run,
                    const TwinOptions& options) const;
  void expect_twins(const std::vector<Tensor>& tensors, const Run& run) const {
    expect_twins(tensors, run, {});
  }

  // For kernels that round less often than their twins: runs on the GPU, and on the CPU with all
  // tensors in fp32; then the first tensors must agree, each within its own tolerance.
  void expect_as_in_fp32(const std::vector<Tensor>& tensors, const Run& run,
                         const std::vector<Tolerance>& tolerances, const std::string& what) const;
};

// While it lives, kernels choose as on a GPU of another compute capability.
class AsOnAnotherGpu {
 public:
  explicit AsOnAnotherGpu(const char* capability) { ::setenv("MEGATRON_GPU_AS", capability, 1); }
  ~AsOnAnotherGpu() { ::unsetenv("MEGATRON_GPU_AS"); }
  AsOnAnotherGpu(const AsOnAnotherGpu&) = delete;
  AsOnAnotherGpu& operator=(const AsOnAnotherGpu&) = delete;
};

// Parameter: dtype.
//
//   INSTANTIATE_TEST_SUITE_P(Dtypes, FillCudaTest, kTrainingDtypes, dtype_name);
class CudaDtypeTest : public CudaTest, public testing::WithParamInterface<DType> {};
inline const auto kTrainingDtypes =
    testing::Values(DType::kFloat32, DType::kFloat16, DType::kBFloat16);
inline std::string dtype_name(const testing::TestParamInfo<DType>& info) {
  return std::string(name_of(info.param));
}

}  // namespace megatron

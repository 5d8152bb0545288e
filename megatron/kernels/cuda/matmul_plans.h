#pragma once

#include <cublasLt.h>

#include <cstdint>
#include <memory>
#include <shared_mutex>
#include <unordered_map>

#include "megatron/device/device.h"
#include "megatron/kernels/matmul.h"

namespace megatron::kernels::cuda {

// Throws DeviceError "<call> failed: <cause>" unless status is a success.
void check_cublas(cublasStatus_t status, const char* call);
#define MG_CUBLAS(call) ::megatron::kernels::cuda::check_cublas((call), #call)

// Everything that cuBLASLt chooses an algorithm by. Extents and transpositions are those of
// matmul(), row-major.
struct MatmulKey {
  int64_t m = 0, n = 0, k = 0;
  DType in = DType::kFloat32;
  DType out = DType::kFloat32;
  Transpose transpose_a = Transpose::kNo;
  Transpose transpose_b = Transpose::kNo;
  bool has_bias = false;
  bool has_beta = false;  // reads c
  bool allows_tf32 = false;
  // The largest power of two, up to 16, that divides the addresses: bytes.
  int alignment_a = 16, alignment_b = 16, alignment_c = 16;

  bool operator==(const MatmulKey& other) const = default;
};

struct MatmulKeyHash {
  size_t operator()(const MatmulKey& key) const;
};

// A product ready to run: everything but the pointers. Plain values, so that each call has a copy.
struct MatmulPlan {
  cublasLtMatmulDescOpaque_t description;
  cublasLtMatrixLayoutOpaque_t left, right, result;
  cublasLtMatmulAlgo_t algorithm;
};

// The cuBLASLt handle of a device, the plans made so far and the workspaces of its streams. A plan
// is made at the first use of its key and kept; afterwards a call costs one look-up. Thread safe.
class MatmulPlans {
 public:
  explicit MatmulPlans(Device device);
  ~MatmulPlans();
  MatmulPlans(const MatmulPlans&) = delete;
  MatmulPlans& operator=(const MatmulPlans&) = delete;

  // Those of a device; they live as long as the process.
  static MatmulPlans& of(Device device);

  cublasLtHandle_t handle() const { return handle_; }
  // Stays valid. Throws Unsupported when cuBLASLt knows no algorithm.
  const MatmulPlan& plan(const MatmulKey& key);
  // kWorkspaceBytes for work on the stream, allocated at its first use.
  void* workspace(Stream stream);

  static constexpr auto kWorkspaceBytes = static_cast<size_t>(kCudaMatmulWorkspaceBytes);

 private:
  Device device_;
  cublasLtHandle_t handle_ = nullptr;
  std::shared_mutex mutex_;
  std::unordered_map<MatmulKey, std::unique_ptr<const MatmulPlan>, MatmulKeyHash> plans_;
  std::unordered_map<void*, void*> workspaces_;  // by stream
};

// c = beta * c + bias: what is left of a product over no terms, and a bias that the product itself
// cannot add.
void add_bias(TensorView c, ConstView bias, float beta, Stream stream);

}  // namespace megatron::kernels::cuda

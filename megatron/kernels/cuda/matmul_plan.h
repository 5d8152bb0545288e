#pragma once

#include <cublasLt.h>

#include <cstdint>
#include <string>
#include <vector>

#include "megatron/device/device.h"
#include "megatron/kernels/fp8_blocks.h"
#include "megatron/kernels/matmul.h"

namespace megatron::kernels::cuda {

// Throws DeviceError "<call> failed: <cause>" unless status is a success.
void check_cublas(cublasStatus_t status, const char* call);
#define MG_CUBLAS(call) ::megatron::kernels::cuda::check_cublas((call), #call)

// The work on a product before it is stored, besides a bias.
enum class Epilogue {
  kNone,
  kGelu,          // d = gelu(product + bias)
  kGeluGradient,  // d = product * gelu'(pre)
};

// The inputs of cuBLASLt's choice of an algorithm. Extents and transpositions are those of
// matmul(), row-major.
struct MatmulKey {
  int64_t m = 0, n = 0, k = 0;
  int64_t depth_parts = 1;  // split-K: partial products, one after the other in d; b is transposed
  DType in = DType::kFloat32;
  DType in_b = in;  // FP8: a and b may have different types
  DType out = DType::kFloat32;
  Transpose transpose_a = Transpose::kNo;
  Transpose transpose_b = Transpose::kNo;
  Epilogue epilogue = Epilogue::kNone;
  bool has_bias = false;
  bool has_beta = false;  // reads c
  bool allows_tf32 = false;
  Fp8Blocks blocks_a = Fp8Blocks::kWhole;  // FP8: the elements of a and b that share a scale
  Fp8Blocks blocks_b = Fp8Blocks::kWhole;
  // The largest power of two that divides the addresses, up to 16 bytes.
  int alignment_a = 16, alignment_b = 16, alignment_c = 16;

  bool operator==(const MatmulKey& other) const = default;
};

struct MatmulKeyHash {
  size_t operator()(const MatmulKey& key) const;
};

// For messages and files; different keys give different texts.
std::string text_of(const MatmulKey& key);

// A product that is ready to run, except for the pointers. Plain values, so each call has a copy.
struct MatmulPlan {
  cublasLtMatmulDescOpaque_t description;
  cublasLtMatrixLayoutOpaque_t left, right, result;
  cublasLtMatmulAlgo_t algorithm;
};

// The pointers of a product: d = a' b' + bias + beta * c. d may be c; c is read only if beta is not
// 0.
struct MatmulOperands {
  void* d = nullptr;
  const void* a = nullptr;
  const void* b = nullptr;
  const void* c = nullptr;
  const void* bias = nullptr;
  float beta = 0;
  const void* pre = nullptr;  // [m, n], dtype of d: read by kGeluGradient
  // FP8: dequantization scales of a and b, on the device.
  const float* inverse_a = nullptr;
  const float* inverse_b = nullptr;
};

// A plan without an algorithm. The algorithms that cuBLASLt offers for an epilogue depend on the
// operands' addresses.
MatmulPlan described(const MatmulKey& key, const MatmulOperands& operands = {});

// At most `limit` algorithms from cuBLASLt, starting with the one it expects to be fastest; none if
// it does not support the product. Each has one order of sums.
std::vector<cublasLtMatmulAlgo_t> offered_algorithms(cublasLtHandle_t handle, MatmulPlan plan,
                                                     const MatmulKey& key, int limit);

// True if `algorithm` supports the plan within the workspace.
bool is_usable(cublasLtHandle_t handle, MatmulPlan plan, const cublasLtMatmulAlgo_t& algorithm);

// Queues the product.
cublasStatus_t launch(cublasLtHandle_t handle, MatmulPlan plan, const MatmulOperands& operands,
                      void* workspace, Stream stream);

}  // namespace megatron::kernels::cuda

#pragma once

#include <cublasLt.h>

#include <cstdint>
#include <string>
#include <vector>

#include "megatron/device/device.h"
#include "megatron/kernels/matmul.h"

namespace megatron::kernels::cuda {

// Throws DeviceError "<call> failed: <cause>" unless status is a success.
void check_cublas(cublasStatus_t status, const char* call);
#define MG_CUBLAS(call) ::megatron::kernels::cuda::check_cublas((call), #call)

// What becomes of a product before it is stored, where it is more than a bias.
enum class Epilogue {
  kNone,
  kGelu,          // d = gelu(product + bias)
  kGeluKept,      // the same, and pre = product + bias
  kGeluGradient,  // d = product * gelu'(pre)
};

// Everything that cuBLASLt chooses an algorithm by. Extents and transpositions are those of
// matmul(), row-major.
struct MatmulKey {
  int64_t m = 0, n = 0, k = 0;
  DType in = DType::kFloat32;
  DType out = DType::kFloat32;
  Transpose transpose_a = Transpose::kNo;
  Transpose transpose_b = Transpose::kNo;
  Epilogue epilogue = Epilogue::kNone;
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

// For messages and files; equal for equal keys only.
std::string text_of(const MatmulKey& key);

// A product ready to run: everything but the pointers. Plain values, so that each call has a copy.
struct MatmulPlan {
  cublasLtMatmulDescOpaque_t description;
  cublasLtMatrixLayoutOpaque_t left, right, result;
  cublasLtMatmulAlgo_t algorithm;
};

// The rest of a product: d = a' b' + bias + beta * c, where d may be c and c is read only if beta
// is not 0.
struct MatmulOperands {
  void* d = nullptr;
  const void* a = nullptr;
  const void* b = nullptr;
  const void* c = nullptr;
  const void* bias = nullptr;
  float beta = 0;
  // [m, n], dtype of d: written by kGeluKept, read by kGeluGradient
  void* pre = nullptr;
};

// A plan whose algorithm is still to be chosen. What cuBLASLt offers for an epilogue depends on the
// addresses it reads and writes.
MatmulPlan described(const MatmulKey& key, const MatmulOperands& operands = {});

// The algorithms that cuBLASLt offers, at most `limit`, the one first that it expects to be the
// fastest; none where it has no such product. Each has one order of sums.
std::vector<cublasLtMatmulAlgo_t> offered_algorithms(cublasLtHandle_t handle, MatmulPlan plan,
                                                     const MatmulKey& key, int limit);

// May `algorithm` compute the plan within the workspace?
bool is_usable(cublasLtHandle_t handle, MatmulPlan plan, const cublasLtMatmulAlgo_t& algorithm);

// Queues the product.
cublasStatus_t launch(cublasLtHandle_t handle, MatmulPlan plan, const MatmulOperands& operands,
                      void* workspace, Stream stream);

}  // namespace megatron::kernels::cuda

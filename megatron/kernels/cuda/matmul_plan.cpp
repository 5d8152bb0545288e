#include "megatron/kernels/cuda/matmul_plan.h"

#include <fmt/format.h>

#include "megatron/core/error.h"

namespace megatron::kernels::cuda {
namespace {

constexpr auto kWorkspaceBytes = static_cast<size_t>(kCudaMatmulWorkspaceBytes);

cudaDataType_t cuda_type(DType dtype) {
  switch (dtype) {
    case DType::kFloat32:
      return CUDA_R_32F;
    case DType::kFloat16:
      return CUDA_R_16F;
    case DType::kBFloat16:
      return CUDA_R_16BF;
    case DType::kFloat8E4M3:
      return CUDA_R_8F_E4M3;
    case DType::kFloat8E5M2:
      return CUDA_R_8F_E5M2;
    default:
      throw DtypeError(fmt::format("matmul: dtype {} is not floating point of 8, 16 or 32 bits",
                                   name_of(dtype)));
  }
}

template <class T>
void set(cublasLtMatmulDescOpaque_t& description, cublasLtMatmulDescAttributes_t attribute,
         const T& value) {
  MG_CUBLAS(cublasLtMatmulDescSetAttribute(&description, attribute, &value, sizeof(value)));
}

template <class T>
void set(cublasLtMatmulPreferenceOpaque_t& preference, cublasLtMatmulPreferenceAttributes_t which,
         const T& value) {
  MG_CUBLAS(cublasLtMatmulPreferenceSetAttribute(&preference, which, &value, sizeof(value)));
}

cublasOperation_t operation(Transpose transpose) {
  return transpose == Transpose::kNo ? CUBLAS_OP_N : CUBLAS_OP_T;
}

cublasLtEpilogue_t epilogue_of(const MatmulKey& key) {
  switch (key.epilogue) {
    case Epilogue::kNone:
      return key.has_bias ? CUBLASLT_EPILOGUE_BIAS : CUBLASLT_EPILOGUE_DEFAULT;
    case Epilogue::kGelu:
      return key.has_bias ? CUBLASLT_EPILOGUE_GELU_BIAS : CUBLASLT_EPILOGUE_GELU;
    case Epilogue::kGeluGradient:
      return CUBLASLT_EPILOGUE_DGELU;
  }
  throw InternalError("matmul: unknown epilogue");
}

const char* text_of(Epilogue epilogue) {
  switch (epilogue) {
    case Epilogue::kNone:
      return "";
    case Epilogue::kGelu:
      return ", GELU";
    case Epilogue::kGeluGradient:
      return ", times the derivative of GELU";
  }
  return "";
}

cublasLtMatmulMatrixScale_t scale_mode(Fp8Blocks blocks) {
  switch (blocks) {
    case Fp8Blocks::kWhole:
      return CUBLASLT_MATMUL_MATRIX_SCALE_SCALAR_32F;
    case Fp8Blocks::kRow:
      return CUBLASLT_MATMUL_MATRIX_SCALE_OUTER_VEC_32F;
    case Fp8Blocks::kLine:
      return CUBLASLT_MATMUL_MATRIX_SCALE_VEC128_32F;
    case Fp8Blocks::kSquare:
      return CUBLASLT_MATMUL_MATRIX_SCALE_BLK128x128_32F;
  }
  throw InternalError("matmul: unknown blocks");
}

const char* text_of(Fp8Blocks blocks) {
  switch (blocks) {
    case Fp8Blocks::kWhole:
      return "";
    case Fp8Blocks::kRow:
      return " in rows";
    case Fp8Blocks::kLine:
      return " in lines";
    case Fp8Blocks::kSquare:
      return " in squares";
  }
  return "";
}

// Sets the addresses of the bias, the epilogue's auxiliary input and the scales.
void point(MatmulPlan& plan, const MatmulOperands& operands) {
  if (operands.bias != nullptr) {
    set(plan.description, CUBLASLT_MATMUL_DESC_BIAS_POINTER, operands.bias);
  }
  if (operands.pre != nullptr) {
    set(plan.description, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER, operands.pre);
  }
  if (operands.inverse_a != nullptr) {
    set(plan.description, CUBLASLT_MATMUL_DESC_A_SCALE_POINTER, operands.inverse_b);
    set(plan.description, CUBLASLT_MATMUL_DESC_B_SCALE_POINTER, operands.inverse_a);
  }
}

// A row-major matrix [rows, cols] is, column-major, its transpose [cols, rows].
void describe(cublasLtMatrixLayoutOpaque_t& layout, DType dtype, int64_t rows, int64_t cols) {
  MG_CUBLAS(cublasLtMatrixLayoutInit(&layout, cuda_type(dtype), static_cast<uint64_t>(cols),
                                     static_cast<uint64_t>(rows), cols));
}

// Turns a layout into a batch of `count` matrices, each with `cols` columns of the row-major matrix
// and `distance` elements apart.
void set_batch(cublasLtMatrixLayoutOpaque_t& layout, int64_t count, int64_t cols,
               int64_t distance) {
  const auto set = [&layout](cublasLtMatrixLayoutAttribute_t attribute, const auto& value) {
    MG_CUBLAS(cublasLtMatrixLayoutSetAttribute(&layout, attribute, &value, sizeof(value)));
  };
  set(CUBLASLT_MATRIX_LAYOUT_ROWS, static_cast<uint64_t>(cols));
  set(CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT, static_cast<int32_t>(count));
  set(CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET, distance);
}

}  // namespace

void check_cublas(cublasStatus_t status, const char* call) {
  if (status == CUBLAS_STATUS_SUCCESS) return;
  throw DeviceError(fmt::format("{} failed: {}", call, cublasLtGetStatusString(status)));
}

size_t MatmulKeyHash::operator()(const MatmulKey& key) const {
  uint64_t hash = 0;
  const auto mix = [&hash](uint64_t value) {
    hash = (hash ^ value) * 0x9E3779B97F4A7C15u;
    hash ^= hash >> 32;
  };
  mix(static_cast<uint64_t>(key.m));
  mix(static_cast<uint64_t>(key.n));
  mix(static_cast<uint64_t>(key.k));
  mix(static_cast<uint64_t>(key.depth_parts));
  uint64_t rest = 0;
  for (const int field :
       {static_cast<int>(key.in), static_cast<int>(key.in_b), static_cast<int>(key.out),
        static_cast<int>(key.transpose_a), static_cast<int>(key.transpose_b),
        static_cast<int>(key.has_bias), static_cast<int>(key.epilogue),
        static_cast<int>(key.has_beta), static_cast<int>(key.allows_tf32), key.alignment_a,
        key.alignment_b, key.alignment_c}) {
    rest = rest << 5 | static_cast<uint64_t>(field);
  }
  mix(rest);
  mix(static_cast<uint64_t>(key.blocks_a) << 8 | static_cast<uint64_t>(key.blocks_b));
  return hash;
}

std::string text_of(const MatmulKey& key) {
  const std::string in = key.in == key.in_b
                             ? std::string(name_of(key.in))
                             : fmt::format("{} x {}", name_of(key.in), name_of(key.in_b));
  const std::string parts =
      key.depth_parts == 1 ? "" : fmt::format(" in {} parts of the depth", key.depth_parts);
  const std::string scaled = fmt::format("{}{}", text_of(key.blocks_a), text_of(key.blocks_b));
  return fmt::format(
      "{}x{}x{}{} {}{} to {}{}{}{}{}{}{}, addresses multiples of {}, {} and {} bytes", key.m, key.n,
      key.k, parts, in, scaled, name_of(key.out),
      key.transpose_a == Transpose::kYes ? ", a transposed" : "",
      key.transpose_b == Transpose::kYes ? ", b transposed" : "", key.has_bias ? ", bias" : "",
      text_of(key.epilogue), key.has_beta ? ", accumulating" : "", key.allows_tf32 ? ", TF32" : "",
      key.alignment_a, key.alignment_b, key.alignment_c);
}

// cuBLASLt multiplies column-major: c^T = b'^T a'^T, so b is its left factor and a its right one.
MatmulPlan described(const MatmulKey& key, const MatmulOperands& operands) {
  MatmulPlan plan{};
  const cublasComputeType_t compute = key.in == DType::kFloat32 && key.allows_tf32
                                          ? CUBLAS_COMPUTE_32F_FAST_TF32
                                          : CUBLAS_COMPUTE_32F;
  MG_CUBLAS(cublasLtMatmulDescInit(&plan.description, compute, CUDA_R_32F));
  set(plan.description, CUBLASLT_MATMUL_DESC_TRANSA, operation(key.transpose_b));
  set(plan.description, CUBLASLT_MATMUL_DESC_TRANSB, operation(key.transpose_a));
  set(plan.description, CUBLASLT_MATMUL_DESC_EPILOGUE, epilogue_of(key));
  if (key.epilogue == Epilogue::kGeluGradient) {
    set(plan.description, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD, key.n);
  }
  if (key.has_bias) {
    set(plan.description, CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE,
        cuda_type(is_float8(key.in) ? key.out : key.in));
  }
  if (key.blocks_a != Fp8Blocks::kWhole) {
    set(plan.description, CUBLASLT_MATMUL_DESC_A_SCALE_MODE, scale_mode(key.blocks_b));
    set(plan.description, CUBLASLT_MATMUL_DESC_B_SCALE_MODE, scale_mode(key.blocks_a));
  }
  const bool plain_a = key.transpose_a == Transpose::kNo;
  const bool plain_b = key.transpose_b == Transpose::kNo;
  describe(plan.left, key.in_b, plain_b ? key.k : key.n, plain_b ? key.n : key.k);
  describe(plan.right, key.in, plain_a ? key.m : key.k, plain_a ? key.k : key.m);
  describe(plan.result, key.out, key.m, key.n);
  if (key.depth_parts > 1) {
    const int64_t depth = key.k / key.depth_parts;
    set_batch(plan.left, key.depth_parts, depth, depth);
    set_batch(plan.right, key.depth_parts, depth, depth);
    set_batch(plan.result, key.depth_parts, key.n, key.m * key.n);
  }
  point(plan, operands);
  return plan;
}

std::vector<cublasLtMatmulAlgo_t> offered_algorithms(cublasLtHandle_t handle, MatmulPlan plan,
                                                     const MatmulKey& key, int limit) {
  cublasLtMatmulPreferenceOpaque_t preference;
  MG_CUBLAS(cublasLtMatmulPreferenceInit(&preference));
  set(preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, kWorkspaceBytes);
  // Parts of a split sum are added in fp32, in one order.
  set(preference, CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK,
      static_cast<uint32_t>(CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE));
  const auto result_alignment = static_cast<uint32_t>(key.alignment_c);
  set(preference, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES,
      static_cast<uint32_t>(key.alignment_b));
  set(preference, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES,
      static_cast<uint32_t>(key.alignment_a));
  set(preference, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, result_alignment);
  set(preference, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, result_alignment);

  std::vector<cublasLtMatmulHeuristicResult_t> offers(static_cast<size_t>(limit));
  int num_offers = 0;
  const cublasStatus_t status = cublasLtMatmulAlgoGetHeuristic(
      handle, &plan.description, &plan.left, &plan.right, &plan.result, &plan.result, &preference,
      limit, offers.data(), &num_offers);
  if (status != CUBLAS_STATUS_NOT_SUPPORTED) check_cublas(status, "cublasLtMatmulAlgoGetHeuristic");
  offers.resize(static_cast<size_t>(num_offers));

  std::vector<cublasLtMatmulAlgo_t> algorithms;
  for (const cublasLtMatmulHeuristicResult_t& offer : offers) {
    if (offer.state == CUBLAS_STATUS_SUCCESS) algorithms.push_back(offer.algo);
  }
  return algorithms;
}

bool is_usable(cublasLtHandle_t handle, MatmulPlan plan, const cublasLtMatmulAlgo_t& algorithm) {
  cublasLtMatmulHeuristicResult_t found{};
  return cublasLtMatmulAlgoCheck(handle, &plan.description, &plan.left, &plan.right, &plan.result,
                                 &plan.result, &algorithm, &found) == CUBLAS_STATUS_SUCCESS &&
         found.state == CUBLAS_STATUS_SUCCESS && found.workspaceSize <= kWorkspaceBytes;
}

cublasStatus_t launch(cublasLtHandle_t handle, MatmulPlan plan, const MatmulOperands& operands,
                      void* workspace, Stream stream) {
  point(plan, operands);
  const float alpha = 1;
  return cublasLtMatmul(handle, &plan.description, &alpha, operands.b, &plan.left, operands.a,
                        &plan.right, &operands.beta, operands.c, &plan.result, operands.d,
                        &plan.result, &plan.algorithm, workspace, kWorkspaceBytes,
                        static_cast<cudaStream_t>(stream.native));
}

}  // namespace megatron::kernels::cuda

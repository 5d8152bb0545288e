#include "megatron/kernels/cuda/matmul_plans.h"

#include <fmt/format.h>

#include <array>
#include <mutex>

#include "megatron/core/error.h"
#include "megatron/device/allocator.h"

namespace megatron::kernels::cuda {
namespace {

cudaDataType_t cuda_type(DType dtype) {
  switch (dtype) {
    case DType::kFloat32:
      return CUDA_R_32F;
    case DType::kFloat16:
      return CUDA_R_16F;
    case DType::kBFloat16:
      return CUDA_R_16BF;
    default:
      throw DtypeError(
          fmt::format("matmul: dtype {} is not float32, float16 or bfloat16", name_of(dtype)));
  }
}

std::string text_of(const MatmulKey& key) {
  return fmt::format(
      "{}x{}x{} {} to {}{}{}{}{}, addresses multiples of {}, {} and {} bytes", key.m, key.n, key.k,
      name_of(key.in), name_of(key.out), key.transpose_a == Transpose::kYes ? ", a transposed" : "",
      key.transpose_b == Transpose::kYes ? ", b transposed" : "", key.has_bias ? ", bias" : "",
      key.has_beta ? ", accumulating" : "", key.alignment_a, key.alignment_b, key.alignment_c);
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

// A row-major matrix [rows, cols] is, column-major, its transpose [cols, rows].
void describe(cublasLtMatrixLayoutOpaque_t& layout, DType dtype, int64_t rows, int64_t cols) {
  MG_CUBLAS(cublasLtMatrixLayoutInit(&layout, cuda_type(dtype), static_cast<uint64_t>(cols),
                                     static_cast<uint64_t>(rows), cols));
}

// cuBLASLt multiplies column-major: c^T = b'^T a'^T, so b is its left factor and a its right one.
void describe(MatmulPlan& plan, const MatmulKey& key) {
  const cublasComputeType_t compute = key.in == DType::kFloat32 && key.allows_tf32
                                          ? CUBLAS_COMPUTE_32F_FAST_TF32
                                          : CUBLAS_COMPUTE_32F;
  MG_CUBLAS(cublasLtMatmulDescInit(&plan.description, compute, CUDA_R_32F));
  set(plan.description, CUBLASLT_MATMUL_DESC_TRANSA, operation(key.transpose_b));
  set(plan.description, CUBLASLT_MATMUL_DESC_TRANSB, operation(key.transpose_a));
  if (key.has_bias) {
    set(plan.description, CUBLASLT_MATMUL_DESC_EPILOGUE, CUBLASLT_EPILOGUE_BIAS);
    set(plan.description, CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE, cuda_type(key.in));
  }
  const bool plain_a = key.transpose_a == Transpose::kNo;
  const bool plain_b = key.transpose_b == Transpose::kNo;
  describe(plan.left, key.in, plain_b ? key.k : key.n, plain_b ? key.n : key.k);
  describe(plan.right, key.in, plain_a ? key.m : key.k, plain_a ? key.k : key.m);
  describe(plan.result, key.out, key.m, key.n);
}

// The algorithm that cuBLASLt expects to be the fastest of those it offers.
cublasLtMatmulAlgo_t choose_algorithm(cublasLtHandle_t handle, MatmulPlan& plan,
                                      const MatmulKey& key) {
  cublasLtMatmulPreferenceOpaque_t preference;
  MG_CUBLAS(cublasLtMatmulPreferenceInit(&preference));
  set(preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, MatmulPlans::kWorkspaceBytes);
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

  std::array<cublasLtMatmulHeuristicResult_t, 8> offers{};
  int num_offers = 0;
  const cublasStatus_t status = cublasLtMatmulAlgoGetHeuristic(
      handle, &plan.description, &plan.left, &plan.right, &plan.result, &plan.result, &preference,
      static_cast<int>(offers.size()), offers.data(), &num_offers);
  if (status != CUBLAS_STATUS_NOT_SUPPORTED) check_cublas(status, "cublasLtMatmulAlgoGetHeuristic");
  for (int i = 0; i < num_offers; ++i) {
    const auto& offer = offers[static_cast<size_t>(i)];
    if (offer.state == CUBLAS_STATUS_SUCCESS) return offer.algo;
  }
  throw Unsupported(
      fmt::format("matmul: cuBLASLt has no algorithm for {}; please report this", text_of(key)));
}

std::unique_ptr<const MatmulPlan> make_plan(cublasLtHandle_t handle, const MatmulKey& key) {
  auto plan = std::make_unique<MatmulPlan>();
  describe(*plan, key);
  plan->algorithm = choose_algorithm(handle, *plan, key);
  return plan;
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
  uint64_t rest = 0;
  for (const int field :
       {static_cast<int>(key.in), static_cast<int>(key.out), static_cast<int>(key.transpose_a),
        static_cast<int>(key.transpose_b), static_cast<int>(key.has_bias),
        static_cast<int>(key.has_beta), static_cast<int>(key.allows_tf32), key.alignment_a,
        key.alignment_b, key.alignment_c}) {
    rest = rest << 5 | static_cast<uint64_t>(field);
  }
  mix(rest);
  return hash;
}

MatmulPlans::MatmulPlans(Device device) : device_(device) { MG_CUBLAS(cublasLtCreate(&handle_)); }

MatmulPlans::~MatmulPlans() { cublasLtDestroy(handle_); }

MatmulPlans& MatmulPlans::of(Device device) {
  // Never destroyed: the CUDA runtime may be gone when static objects are.
  static std::mutex mutex;
  static auto& all = *new std::unordered_map<int, std::unique_ptr<MatmulPlans>>();
  const std::lock_guard lock(mutex);
  auto& plans = all[device.index];
  if (plans == nullptr) plans = std::make_unique<MatmulPlans>(device);
  return *plans;
}

const MatmulPlan& MatmulPlans::plan(const MatmulKey& key) {
  {
    const std::shared_lock lock(mutex_);
    const auto found = plans_.find(key);
    if (found != plans_.end()) return *found->second;
  }
  auto made = make_plan(handle_, key);
  const std::unique_lock lock(mutex_);
  return *plans_.try_emplace(key, std::move(made)).first->second;
}

void* MatmulPlans::workspace(Stream stream) {
  {
    const std::shared_lock lock(mutex_);
    const auto found = workspaces_.find(stream.native);
    if (found != workspaces_.end()) return found->second;
  }
  const std::unique_lock lock(mutex_);
  void*& workspace = workspaces_[stream.native];
  if (workspace == nullptr) {
    workspace = allocator_of(device_).allocate(static_cast<int64_t>(kWorkspaceBytes),
                                               MemoryCategory::kWorkspace);
  }
  return workspace;
}

}  // namespace megatron::kernels::cuda

#include <cublasLt.h>
#include <cublas_api.h>
#include <fmt/format.h>

#include "megatron/kernels/cuda/forward.h"

// The functions of cuBLASLt that matrix products call.
namespace {

const megatron::LazyLibrary& cublaslt_library() {
  static const std::string file = fmt::format("libcublasLt.so.{}", CUBLAS_VER_MAJOR);
  static const megatron::LazyLibrary found(
      file.c_str(),
      fmt::format("install cuBLAS of CUDA {0} (with pip: nvidia-cublas), name its folder "
                  "in MEGATRON_LIBRARY_PATH, or use --device cpu",
                  CUBLAS_VER_MAJOR));
  return found;
}

}  // namespace

MG_FORWARD(cublaslt_library(), cublasStatus_t, cublasLtCreate, (cublasLtHandle_t * handle),
           (handle))
MG_FORWARD(cublaslt_library(), cublasStatus_t, cublasLtDestroy, (cublasLtHandle_t handle), (handle))
MG_FORWARD(cublaslt_library(), const char*, cublasLtGetStatusString, (cublasStatus_t status),
           (status))
MG_FORWARD(cublaslt_library(), size_t, cublasLtGetVersion, (), ())
MG_FORWARD(cublaslt_library(), cublasStatus_t, cublasLtMatmul,
           (cublasLtHandle_t handle, cublasLtMatmulDesc_t description, const void* alpha,
            const void* a, cublasLtMatrixLayout_t a_layout, const void* b,
            cublasLtMatrixLayout_t b_layout, const void* beta, const void* c,
            cublasLtMatrixLayout_t c_layout, void* d, cublasLtMatrixLayout_t d_layout,
            const cublasLtMatmulAlgo_t* algorithm, void* workspace, size_t workspace_bytes,
            cudaStream_t stream),
           (handle, description, alpha, a, a_layout, b, b_layout, beta, c, c_layout, d, d_layout,
            algorithm, workspace, workspace_bytes, stream))
MG_FORWARD(cublaslt_library(), cublasStatus_t, cublasLtMatmulAlgoGetHeuristic,
           (cublasLtHandle_t handle, cublasLtMatmulDesc_t description,
            cublasLtMatrixLayout_t a_layout, cublasLtMatrixLayout_t b_layout,
            cublasLtMatrixLayout_t c_layout, cublasLtMatrixLayout_t d_layout,
            cublasLtMatmulPreference_t preference, int wanted,
            cublasLtMatmulHeuristicResult_t results[], int* found),
           (handle, description, a_layout, b_layout, c_layout, d_layout, preference, wanted,
            results, found))
MG_FORWARD(cublaslt_library(), cublasStatus_t, cublasLtMatmulAlgoCheck,
           (cublasLtHandle_t handle, cublasLtMatmulDesc_t description,
            cublasLtMatrixLayout_t a_layout, cublasLtMatrixLayout_t b_layout,
            cublasLtMatrixLayout_t c_layout, cublasLtMatrixLayout_t d_layout,
            const cublasLtMatmulAlgo_t* algorithm, cublasLtMatmulHeuristicResult_t* result),
           (handle, description, a_layout, b_layout, c_layout, d_layout, algorithm, result))
MG_FORWARD(cublaslt_library(), cublasStatus_t, cublasLtMatmulDescInit_internal,
           (cublasLtMatmulDesc_t description, size_t size, cublasComputeType_t compute,
            cudaDataType_t scale),
           (description, size, compute, scale))
MG_FORWARD(cublaslt_library(), cublasStatus_t, cublasLtMatmulDescSetAttribute,
           (cublasLtMatmulDesc_t description, cublasLtMatmulDescAttributes_t attribute,
            const void* value, size_t size),
           (description, attribute, value, size))
MG_FORWARD(cublaslt_library(), cublasStatus_t, cublasLtMatmulPreferenceInit_internal,
           (cublasLtMatmulPreference_t preference, size_t size), (preference, size))
MG_FORWARD(cublaslt_library(), cublasStatus_t, cublasLtMatmulPreferenceSetAttribute,
           (cublasLtMatmulPreference_t preference, cublasLtMatmulPreferenceAttributes_t attribute,
            const void* value, size_t size),
           (preference, attribute, value, size))
MG_FORWARD(cublaslt_library(), cublasStatus_t, cublasLtMatrixLayoutInit_internal,
           (cublasLtMatrixLayout_t layout, size_t size, cudaDataType type, uint64_t rows,
            uint64_t cols, int64_t ld),
           (layout, size, type, rows, cols, ld))
MG_FORWARD(cublaslt_library(), cublasStatus_t, cublasLtMatrixLayoutSetAttribute,
           (cublasLtMatrixLayout_t layout, cublasLtMatrixLayoutAttribute_t attribute,
            const void* value, size_t size),
           (layout, attribute, value, size))

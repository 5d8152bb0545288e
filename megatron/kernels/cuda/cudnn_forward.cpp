#include <cudnn.h>
#include <fmt/format.h>

#include "megatron/kernels/cuda/forward.h"

// The functions of cuDNN that cudnn-frontend and attention call.
namespace {

const megatron::LazyLibrary& cudnn_library() {
  static const std::string file = fmt::format("libcudnn.so.{}", CUDNN_MAJOR);
  static const megatron::LazyLibrary found(
      file.c_str(),
      fmt::format("install cuDNN {} (with pip: nvidia-cudnn-cu13), or name its folder in "
                  "MEGATRON_LIBRARY_PATH",
                  CUDNN_MAJOR));
  return found;
}

}  // namespace

MG_FORWARD(cudnn_library(), size_t, cudnnGetVersion, (), ())
MG_FORWARD(cudnn_library(), const char*, cudnnGetErrorString, (cudnnStatus_t status), (status))
MG_FORWARD(cudnn_library(), void, cudnnGetLastErrorString, (char* message, size_t size),
           (message, size))
MG_FORWARD(cudnn_library(), cudnnStatus_t, cudnnCreate, (cudnnHandle_t * handle), (handle))
MG_FORWARD(cudnn_library(), cudnnStatus_t, cudnnSetStream,
           (cudnnHandle_t handle, cudaStream_t stream), (handle, stream))
MG_FORWARD(cudnn_library(), cudnnStatus_t, cudnnGetStream,
           (cudnnHandle_t handle, cudaStream_t* stream), (handle, stream))
MG_FORWARD(cudnn_library(), cudnnStatus_t, cudnnBackendCreateDescriptor,
           (cudnnBackendDescriptorType_t type, cudnnBackendDescriptor_t* descriptor),
           (type, descriptor))
MG_FORWARD(cudnn_library(), cudnnStatus_t, cudnnBackendDestroyDescriptor,
           (cudnnBackendDescriptor_t descriptor), (descriptor))
MG_FORWARD(cudnn_library(), cudnnStatus_t, cudnnBackendFinalize,
           (cudnnBackendDescriptor_t descriptor), (descriptor))
MG_FORWARD(cudnn_library(), cudnnStatus_t, cudnnBackendSetAttribute,
           (cudnnBackendDescriptor_t descriptor, cudnnBackendAttributeName_t name,
            cudnnBackendAttributeType_t type, int64_t count, const void* elements),
           (descriptor, name, type, count, elements))
MG_FORWARD(cudnn_library(), cudnnStatus_t, cudnnBackendGetAttribute,
           (cudnnBackendDescriptor_t descriptor, cudnnBackendAttributeName_t name,
            cudnnBackendAttributeType_t type, int64_t wanted, int64_t* count, void* elements),
           (descriptor, name, type, wanted, count, elements))
MG_FORWARD(cudnn_library(), cudnnStatus_t, cudnnBackendExecute,
           (cudnnHandle_t handle, cudnnBackendDescriptor_t plan, cudnnBackendDescriptor_t pack),
           (handle, plan, pack))

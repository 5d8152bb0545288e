#include "megatron/tensor.h"

#include "megatron/api/handles.h"
#include "megatron/core/error.h"
#include "megatron/device/stream.h"

namespace megatron::api {

int64_t Tensor::numel() const {
  int64_t numel = 1;
  for (const int64_t size : shape) numel *= size;
  return numel;
}

const float* Tensor::floats() const {
  if (dtype != DType::kFloat32) {
    throw DtypeError("floats() of a tensor of " + std::string(name_of(dtype)));
  }
  if (device >= 0) throw DeviceError("floats() of a tensor on a GPU");
  return static_cast<const float*>(data);
}

Tensor handle_of(const megatron::Tensor& tensor) {
  synchronize(tensor.stream());
  const auto owner = std::make_shared<megatron::Tensor>(tensor);
  Tensor handle;
  handle.data = owner->view().data;
  handle.dtype = tensor.dtype();
  handle.shape.assign(tensor.shape().dims().begin(), tensor.shape().dims().end());
  handle.strides.assign(handle.shape.size(), 1);
  for (size_t axis = handle.shape.size(); axis-- > 1;) {
    handle.strides[axis - 1] = handle.strides[axis] * handle.shape[axis];
  }
  if (!tensor.stream().is_cpu()) handle.device = tensor.stream().device.index;
  handle.owner = owner;
  return handle;
}

std::vector<NamedTensor> parameters_of(const std::vector<const Module*>& modules) {
  std::vector<NamedTensor> parameters;
  for (const Module* const module : modules) {
    for (const Parameter& parameter : named_parameters(*module)) {
      parameters.push_back({parameter.name, handle_of(parameter.variable.data())});
    }
  }
  return parameters;
}

}  // namespace megatron::api

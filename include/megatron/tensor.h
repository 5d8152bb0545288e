#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "megatron/core/dtype.h"

namespace megatron::api {

// Elements in memory, with the properties that DLPack asks for. Copies share the elements.
struct Tensor {
  void* data = nullptr;  // of the host, or of GPU `device`
  DType dtype = DType::kFloat32;
  std::vector<int64_t> shape;
  std::vector<int64_t> strides;  // in elements, one per axis
  int device = -1;               // the CUDA device; -1: host memory
  std::shared_ptr<void> owner;   // keeps the elements

  int64_t numel() const;
  // The elements of a contiguous tensor of floats in host memory. Throws DtypeError or DeviceError.
  const float* floats() const;
};

struct NamedTensor {
  std::string name;  // the dotted path: "decoder.layers.0.mlp.linear_fc1.weight"
  Tensor tensor;
};

}  // namespace megatron::api

#pragma once

#include <cstdint>
#include <string>

#include "megatron/core/dtype.h"
#include "megatron/core/shape.h"

namespace megatron {

// A named tensor without its elements.
struct TensorSpec {
  std::string name;
  DType dtype = DType::kFloat32;
  Shape shape;

  int64_t bytes() const { return shape.numel() * size_of(dtype); }
};

}  // namespace megatron

#pragma once

#include "megatron/core/view.h"
#include "megatron/tensor/tensor.h"

namespace megatron {

// Elements of a tensor in a file: where they lie in a mapping, or in `owner` when they had to be
// made. Elements in a foreign file may be unaligned.
struct FileElements {
  ConstView view;
  Tensor owner = {};
};

}  // namespace megatron

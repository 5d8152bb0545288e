#pragma once

#include <memory>

#include "megatron/core/view.h"
#include "megatron/tensor/tensor.h"

namespace megatron {

// Elements of a tensor in a file: where they lie in a mapping, or in `owner` when they had to be
// made. Elements in a foreign file may be unaligned.
struct FileElements {
  ConstView view;
  Tensor owner = {};
  std::shared_ptr<void> lease = {};  // of the pages of the mapping, see lease_of
};

// Gives the memory of a mapped file's elements back when the last copy of it goes: the mapping
// stays valid, and reading it again is free while the system keeps the file in its cache. Without,
// a program that walks through a file would seem to need as much memory as the file has bytes.
std::shared_ptr<void> lease_of(ConstView view);

}  // namespace megatron

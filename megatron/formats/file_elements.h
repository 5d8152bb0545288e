#pragma once

#include <memory>

#include "megatron/core/view.h"
#include "megatron/tensor/tensor.h"

namespace megatron {

// Elements of a tensor from a file: in the mapped file, or in `owner` if they had to be converted.
// Elements in a foreign file may be unaligned.
struct FileElements {
  ConstView view;
  Tensor owner = {};
  std::shared_ptr<void> lease = {};  // of the mapping's pages, see lease_of()
};

// Releases the pages of a mapped file's elements when the last copy is destroyed (madvise). The
// mapping stays valid, and reading it again is cheap while the file is in the page cache. Without
// it, the resident memory of a program that reads a whole file would grow by the file's size.
std::shared_ptr<void> lease_of(ConstView view);

}  // namespace megatron

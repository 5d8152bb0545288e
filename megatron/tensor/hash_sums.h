#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "megatron/tensor/tensor.h"

namespace megatron {

// The hashes of some tensors (kernels/hash_term.h), computed on the device of their elements. Parts
// of tensors are added in any order.
class HashSums {
 public:
  explicit HashSums(size_t num_tensors);

  // Adds a part of a tensor: `x` has elements [begin, begin + n) of it, or rows of elements,
  // [rows, cols], of which each begins `stride` elements after the one before. Queues the work.
  void add(size_t tensor, ConstView x, int64_t begin, Stream stream);
  void add_rows(size_t tensor, ConstView x, int64_t begin, int64_t stride, Stream stream);

  // Waits for the work.
  std::vector<uint64_t> values() const;

 private:
  std::vector<int64_t> on_host_;  // by tensor
  Tensor on_device_;              // sums of the elements on a GPU; undefined without any
};

}  // namespace megatron

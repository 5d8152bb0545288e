#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "megatron/tensor/tensor.h"

namespace megatron {

// While it lives, lists the tensors that this thread makes as activations (MemoryCategory), without
// keeping them alive. Only the innermost one lists.
class NewTensors {
 public:
  struct Entry {
    std::weak_ptr<Storage> storage;
    int64_t numel = 0;
  };

  NewTensors();
  ~NewTensors();
  NewTensors(const NewTensors&) = delete;
  NewTensors& operator=(const NewTensors&) = delete;

  const std::vector<Entry>& entries() const { return entries_; }

 private:
  friend class Tensor;
  static void note(const std::shared_ptr<Storage>& storage, int64_t numel);

  NewTensors* previous_;
  std::vector<Entry> entries_;
};

}  // namespace megatron

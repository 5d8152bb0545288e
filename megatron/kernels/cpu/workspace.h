#pragma once

#include <cstdint>

#include "megatron/core/view.h"
#include "megatron/device/allocator.h"

namespace megatron::kernels::cpu {

// Scratch memory of one kernel call, from the device's pool: a warm pool takes nothing from the
// system. Aligned to 64 bytes, content undefined.
class Scratch {
 public:
  Scratch(int64_t bytes, Stream stream)
      : allocator_(allocator_of(stream.device)),
        data_(allocator_.allocate(bytes, MemoryCategory::kWorkspace)) {}
  ~Scratch() { allocator_.release(data_); }
  Scratch(const Scratch&) = delete;
  Scratch& operator=(const Scratch&) = delete;

  void* data() const { return data_; }
  template <class T>
  T* as() const {
    return static_cast<T*>(data_);
  }

 private:
  CachingAllocator& allocator_;
  void* data_;
};

// A tensor in fp32 as scratch memory.
struct WideScratch {
  WideScratch(const Shape& shape, Stream stream)
      : memory(shape.numel() * 4, stream), view{memory.data(), shape, DType::kFloat32} {}

  Scratch memory;
  TensorView view;
};

}  // namespace megatron::kernels::cpu

#pragma once

#include <cstddef>
#include <new>
#include <vector>

namespace megatron {

// Memory that begins at a cache line.
template <class T>
struct CacheLineAllocator {
  using value_type = T;

  static constexpr std::align_val_t kCacheLine{64};

  CacheLineAllocator() = default;
  template <class U>
  // NOLINTNEXTLINE(google-explicit-constructor): containers convert allocators
  CacheLineAllocator(const CacheLineAllocator<U>&) {}

  T* allocate(size_t count) {
    return static_cast<T*>(::operator new(count * sizeof(T), kCacheLine));
  }
  void deallocate(T* block, size_t) { ::operator delete(block, kCacheLine); }
  bool operator==(const CacheLineAllocator&) const { return true; }
};

template <class T>
using CacheLineVector = std::vector<T, CacheLineAllocator<T>>;

}  // namespace megatron

#pragma once

#include <atomic>
#include <cstdint>
#include <exception>

#include "megatron/core/parallel_for.h"

namespace megatron::retro {

// Calls f(i) for i in [0, n) on the threads of parallel_for. Rethrows the exception of one call;
// then some calls are left out.
template <class F>
void for_each_number(int64_t n, const F& f) {
  std::exception_ptr failure;
  std::atomic_flag has_failed = ATOMIC_FLAG_INIT;
  parallel_for(n, 1, [&](int64_t begin, int64_t end) {
    try {
      for (int64_t i = begin; i < end && !has_failed.test(); ++i) f(i);
    } catch (...) {
      if (!has_failed.test_and_set()) failure = std::current_exception();
    }
  });
  if (failure) std::rethrow_exception(failure);
}

}  // namespace megatron::retro

#pragma once

#include <algorithm>
#include <cstdint>
#include <cstdlib>

#include "tests/support/sanitizers.h"

namespace megatron {

// Number of repetitions of a test with random data: `usual`, a tenth of it under a sanitizer, which
// makes it ten times as slow or more.
inline int64_t rounds(int64_t usual) {
#if MG_ADDRESS_SANITIZER || MG_THREAD_SANITIZER
  return std::max<int64_t>(usual / 10, 1);
#else
  return usual;
#endif
}

// The same for random texts, of which MG_FUZZ_STRINGS in the environment sets another number.
inline int64_t random_texts(int64_t usual) {
  const char* const count = std::getenv("MG_FUZZ_STRINGS");
  return count != nullptr ? std::atoll(count) : rounds(usual);
}

}  // namespace megatron

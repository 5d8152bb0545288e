#pragma once

namespace megatron::comm {

// Tells the processor that this thread spins, so that it leaves resources to the other thread of
// its core.
inline void spin_pause() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#endif
}

}  // namespace megatron::comm

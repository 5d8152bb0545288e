#pragma once

namespace megatron {

// How a process ends, besides 0.
inline constexpr int kExitFault = 1;     // a rank, a device or the network failed: may pass
inline constexpr int kExitInput = 2;     // the input is at fault: another attempt would end alike
inline constexpr int kExitReleased = 3;  // another rank failed

}  // namespace megatron

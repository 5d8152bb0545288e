#pragma once

namespace megatron {

// Exit codes of a process, besides 0.
inline constexpr int kExitFault = 1;     // a rank, a device or the network failed; may be temporary
inline constexpr int kExitInput = 2;     // the input is at fault; another attempt would fail too
inline constexpr int kExitReleased = 3;  // another rank failed

}  // namespace megatron

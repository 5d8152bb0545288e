#pragma once

namespace megatron::frontends {

// A version of Accelerate whose questions and files differ from the previous one's. The first is
// that of the documents; 0.27, 1.0 and 1.15 stand for the releases around them.
enum class AccelerateVersion { k0_14, k0_27, k1_0, k1_15 };

}  // namespace megatron::frontends

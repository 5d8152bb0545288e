#pragma once

namespace megatron {

// The parts of a checkpoint to open. Files that are not needed may be missing or damaged.
enum class Parts { kAll, kWeights };

}  // namespace megatron

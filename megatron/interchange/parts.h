#pragma once

namespace megatron {

// What of a checkpoint is opened. A file that is not needed may be missing or damaged.
enum class Parts { kAll, kWeights };

}  // namespace megatron

#pragma once

namespace megatron {

// Segments of GPU memory that other processes may have open. CUDA forbids to free such memory
// before they have closed it, so the allocators keep these segments, for use in this process, until
// it ends. Thread safe.
void keep_exported(const void* segment);
bool is_exported(const void* segment);

}  // namespace megatron

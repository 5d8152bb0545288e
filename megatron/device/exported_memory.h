#pragma once

namespace megatron {

// Segments of GPU memory that are exported to other processes (CUDA IPC). CUDA forbids freeing such
// memory before the others have closed it, so the allocators keep these segments, for use in this
// process, until it ends. Thread safe.
void keep_exported(const void* segment);
bool is_exported(const void* segment);

}  // namespace megatron

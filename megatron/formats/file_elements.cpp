#include "megatron/formats/file_elements.h"

#include <sys/mman.h>
#include <unistd.h>

#include <cstdint>

namespace megatron {

std::shared_ptr<void> lease_of(ConstView view) {
  const auto page = static_cast<uintptr_t>(::sysconf(_SC_PAGESIZE));
  const auto begin = (reinterpret_cast<uintptr_t>(view.data) + page - 1) / page * page;
  const auto end =
      (reinterpret_cast<uintptr_t>(view.data) + static_cast<uintptr_t>(view.bytes())) / page * page;
  if (begin >= end) return nullptr;
  // NOLINTNEXTLINE(performance-no-int-to-ptr): an address inside the mapping
  return {reinterpret_cast<void*>(begin),
          [size = end - begin](void* pages) { ::madvise(pages, size, MADV_DONTNEED); }};
}

}  // namespace megatron

#include "megatron/device/exported_memory.h"

#include <mutex>
#include <set>

namespace megatron {
namespace {

struct Exported {
  std::mutex mutex;
  std::set<const void*> segments;
};

Exported& exported() {
  // Never destroyed: allocators use it until the process ends.
  // NOLINTNEXTLINE(cppcoreguidelines-avoid-non-const-global-variables)
  static auto* const all = new Exported();
  return *all;
}

}  // namespace

void keep_exported(const void* segment) {
  const std::lock_guard lock(exported().mutex);
  exported().segments.insert(segment);
}

bool is_exported(const void* segment) {
  const std::lock_guard lock(exported().mutex);
  return exported().segments.contains(segment);
}

}  // namespace megatron

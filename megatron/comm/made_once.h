#pragma once

#include <cstdint>
#include <memory>

#include "megatron/comm/collectives.h"
#include "megatron/comm/transport.h"

namespace megatron::comm {

// What `make` returns, a std::shared_ptr to something that all may read at once: made by rank 0
// alone and shared where the ranks are threads of this process, made by each where they are
// processes. All ranks of the group call it; what `make` throws on rank 0 releases the others.
template <class F>
auto made_once(const Group& group, const F& make) {
  if (group.size() == 1 || group.transport().threads() == nullptr) return make();
  using Pointer = decltype(make());
  std::unique_ptr<Pointer> own;
  if (group.rank() == 0) own = std::make_unique<Pointer>(make());
  auto address = reinterpret_cast<int64_t>(own.get());
  broadcast({&address, {1}, DType::kInt64}, 0, group, Stream{});
  Pointer object = *reinterpret_cast<const Pointer*>(address);
  try {
    barrier(group);  // all have read it
  } catch (...) {
    static_cast<void>(own.release());  // a rank may still be reading while the others are released
    throw;
  }
  return object;
}

}  // namespace megatron::comm

#pragma once

#include <bit>
#include <cstdint>
#include <memory>

#include "megatron/comm/collectives.h"
#include "megatron/comm/transport.h"

namespace megatron::comm {

// The result of `make`, a std::shared_ptr to an object that all ranks may read concurrently. Rank 0
// makes and shares it if the ranks are threads of this process; ranks that are processes each make
// their own. All ranks of the group call it; an exception of `make` on rank 0 releases the others.
template <class F>
auto broadcast_object(const Group& group, const F& make) {
  if (group.size() == 1 || group.transport().threads() == nullptr) return make();
  using Pointer = decltype(make());
  std::unique_ptr<Pointer> own;
  if (group.rank() == 0) own = std::make_unique<Pointer>(make());
  auto address = std::bit_cast<int64_t>(own.get());
  broadcast({&address, {1}, DType::kInt64}, 0, group, Stream{});
  Pointer object = *std::bit_cast<const Pointer*>(address);
  try {
    barrier(group);  // every rank has copied the pointer
  } catch (...) {
    static_cast<void>(own.release());  // a rank may still be reading while the others are released
    throw;
  }
  return object;
}

}  // namespace megatron::comm

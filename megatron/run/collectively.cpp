#include "megatron/run/collectively.h"

#include "megatron/comm/collectives.h"

namespace megatron {

void throw_on_all_ranks(std::string failure_of_first, const comm::Group& world) {
  auto size = static_cast<int64_t>(failure_of_first.size());
  comm::broadcast({&size, {1}, DType::kInt64}, 0, world, Stream{});
  if (size == 0) return;
  failure_of_first.resize(static_cast<size_t>(size));
  comm::broadcast({failure_of_first.data(), {size}, DType::kUInt8}, 0, world, Stream{});
  throw CommonConfigError(failure_of_first);
}

}  // namespace megatron

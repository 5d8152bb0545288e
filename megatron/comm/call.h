#pragma once

#include <cstdint>
#include <string>

#include "megatron/core/dtype.h"

namespace megatron::comm {

enum class Reduce { kSum, kMax };

enum class Operation {
  kAllReduce,
  kAllGather,
  kReduceScatter,
  kBroadcast,
  kAllToAll,
  kBarrier,
  kExchange,
  kSend,
  kRecv,
  kConnect,  // connect this GPU to the GPUs of the other members
};

// "all_reduce", ...
const char* name_of(Operation operation);

// A rank's request to a group. All members of a collective make the same call.
struct Call {
  Operation operation = Operation::kBarrier;
  DType dtype = DType::kUInt8;
  // Elements: all of them (all_reduce, broadcast, messages), or one rank's part (the others).
  int64_t count = 0;
  Reduce reduce = Reduce::kSum;  // all_reduce, reduce_scatter
  int peer = -1;                 // the root of a broadcast, the other side of a message

  bool operator==(const Call& other) const = default;
  int64_t bytes() const { return count * size_of(dtype); }
  // "all_reduce(sum, 16 x float32)"
  std::string str() const;
};

}  // namespace megatron::comm

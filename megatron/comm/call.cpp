#include "megatron/comm/call.h"

#include <fmt/format.h>

namespace megatron::comm {

const char* name_of(Operation operation) {
  switch (operation) {
    case Operation::kAllReduce:
      return "all_reduce";
    case Operation::kAllGather:
      return "all_gather";
    case Operation::kReduceScatter:
      return "reduce_scatter";
    case Operation::kBroadcast:
      return "broadcast";
    case Operation::kAllToAll:
      return "all_to_all";
    case Operation::kBarrier:
      return "barrier";
    case Operation::kExchange:
      return "exchange";
    case Operation::kSend:
      return "send";
    case Operation::kRecv:
      return "recv";
    case Operation::kConnect:
      return "connect";
  }
  return "?";
}

std::string Call::str() const {
  const char* const name = name_of(operation);
  if (operation == Operation::kBarrier || operation == Operation::kConnect) return name;
  const std::string size = fmt::format("{} x {}", count, megatron::name_of(dtype));
  switch (operation) {
    case Operation::kAllReduce:
    case Operation::kReduceScatter:
      return fmt::format("{}({}, {})", name, reduce == Reduce::kSum ? "sum" : "max", size);
    case Operation::kBroadcast:
      return fmt::format("{}({}, root {})", name, size, peer);
    case Operation::kSend:
      return fmt::format("{}({} to {})", name, size, peer);
    case Operation::kRecv:
      return fmt::format("{}({} from {})", name, size, peer);
    default:
      return fmt::format("{}({})", name, size);
  }
}

}  // namespace megatron::comm

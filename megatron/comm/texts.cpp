#include "megatron/comm/texts.h"

#include <cstdint>

#include "megatron/comm/collectives.h"

namespace megatron::comm {

std::vector<std::string> gathered_on_first(const std::string& text, const Group& group) {
  std::vector<int64_t> sizes(static_cast<size_t>(group.size()));
  auto own = static_cast<int64_t>(text.size());
  all_gather({sizes.data(), {group.size()}, DType::kInt64}, {&own, {1}, DType::kInt64}, group,
             Stream{});
  if (group.rank() != 0) {
    send({text.data(), {own}, DType::kUInt8}, 0, group, Stream{});
    return {};
  }
  std::vector<std::string> texts = {text};
  for (int rank = 1; rank < group.size(); ++rank) {
    const int64_t size = sizes[static_cast<size_t>(rank)];
    std::string& other = texts.emplace_back(static_cast<size_t>(size), ' ');
    recv({other.data(), {size}, DType::kUInt8}, rank, group, Stream{});
  }
  return texts;
}

}  // namespace megatron::comm

#include "megatron/comm/texts.h"

#include <algorithm>
#include <cstdint>

#include "megatron/comm/collectives.h"

namespace megatron::comm {
namespace {

// The bytes of all ranks' texts.
std::vector<int64_t> gathered_sizes(int64_t own, const Group& group) {
  std::vector<int64_t> sizes(static_cast<size_t>(group.size()));
  all_gather({sizes.data(), {group.size()}, DType::kInt64}, {&own, {1}, DType::kInt64}, group,
             Stream{});
  return sizes;
}

}  // namespace

std::vector<std::string> gathered_on_first(const std::string& text, const Group& group) {
  const auto own = static_cast<int64_t>(text.size());
  const std::vector<int64_t> sizes = gathered_sizes(own, group);
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

std::vector<std::string> gathered_texts(const std::string& text, const Group& group) {
  const std::vector<int64_t> sizes = gathered_sizes(static_cast<int64_t>(text.size()), group);
  const int64_t longest = *std::max_element(sizes.begin(), sizes.end());
  if (longest == 0) return std::vector<std::string>(sizes.size());
  std::string own = text;
  own.resize(static_cast<size_t>(longest));
  std::string all(static_cast<size_t>(longest * group.size()), ' ');
  all_gather({all.data(), {group.size() * longest}, DType::kUInt8},
             {own.data(), {longest}, DType::kUInt8}, group, Stream{});
  std::vector<std::string> texts;
  for (size_t rank = 0; rank < sizes.size(); ++rank) {
    texts.push_back(
        all.substr(rank * static_cast<size_t>(longest), static_cast<size_t>(sizes[rank])));
  }
  return texts;
}

}  // namespace megatron::comm

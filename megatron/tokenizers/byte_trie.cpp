#include "megatron/tokenizers/byte_trie.h"

#include <bit>
#include <utility>

namespace megatron {

ByteTrie::ByteTrie() : edges_(64), shift_(64 - 6), numbers_{-1} {}

void ByteTrie::add_edge(const Edge& edge) {
  size_t i = slot_of(edge.parent, static_cast<char>(edge.byte));
  while (edges_[i].parent >= 0) i = (i + 1) & (edges_.size() - 1);
  edges_[i] = edge;
}

void ByteTrie::grow() {
  const std::vector<Edge> old = std::exchange(edges_, std::vector<Edge>(edges_.size() * 2));
  --shift_;
  for (const Edge& edge : old) {
    if (edge.parent >= 0) add_edge(edge);
  }
}

void ByteTrie::insert(std::string_view key, int32_t number) {
  int32_t node = 0;
  for (const char byte : key) {
    int32_t child = child_of(node, byte);
    if (child < 0) {
      if (numbers_.size() * 2 > edges_.size()) grow();
      child = static_cast<int32_t>(numbers_.size());
      numbers_.push_back(-1);
      add_edge({node, child, static_cast<uint8_t>(byte)});
    }
    node = child;
  }
  numbers_[static_cast<size_t>(node)] = number;
}

ByteTrie::Match ByteTrie::longest_prefix(std::string_view text) const {
  Match longest;
  for_each_prefix(text, [&](Match match) { longest = match; });
  return longest;
}

}  // namespace megatron

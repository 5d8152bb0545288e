#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>
#include <vector>

namespace megatron {

// A trie of byte strings, each with a number >= 0: one walk finds all members that are prefixes of
// a text. Thread safe for reading once it is filled.
class ByteTrie {
 public:
  ByteTrie();

  // Replaces the number of an existing key.
  void insert(std::string_view key, int32_t number);

  struct Match {
    size_t length = 0;
    int32_t number = -1;  // -1: not found
  };
  // The longest non-empty member that is a prefix of `text`.
  Match longest_prefix(std::string_view text) const;

  // Calls visit(Match) for each non-empty member that is a prefix of `text`, shortest first.
  template <class Visit>
  void for_each_prefix(std::string_view text, Visit&& visit) const {
    int32_t node = 0;
    for (size_t i = 0; i < text.size(); ++i) {
      node = child_of(node, text[i]);
      if (node < 0) return;
      const int32_t number = numbers_[static_cast<size_t>(node)];
      if (number >= 0) visit(Match{i + 1, number});
    }
  }

 private:
  // An edge of the tree, in an open hash table.
  struct Edge {
    int32_t parent = -1;  // -1: a free slot
    int32_t child = -1;
    uint8_t byte = 0;
  };

  size_t slot_of(int32_t node, char byte) const {
    const uint64_t key =
        (static_cast<uint64_t>(static_cast<uint32_t>(node)) << 8) | static_cast<uint8_t>(byte);
    return (key * 0x9E3779B97F4A7C15u) >> shift_;
  }
  // -1 if the node has no such child.
  int32_t child_of(int32_t node, char byte) const {
    for (size_t i = slot_of(node, byte);; i = (i + 1) & (edges_.size() - 1)) {
      const Edge& edge = edges_[i];
      if (edge.parent < 0) return -1;
      if (edge.parent == node && edge.byte == static_cast<uint8_t>(byte)) return edge.child;
    }
  }
  void add_edge(const Edge& edge);
  void grow();

  std::vector<Edge> edges_;
  int shift_;                     // of a 64-bit hash, to a slot
  std::vector<int32_t> numbers_;  // by node; -1: not the end of a member
};

}  // namespace megatron

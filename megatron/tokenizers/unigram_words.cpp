#include "megatron/tokenizers/unigram_words.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <optional>

#include "megatron/tokenizers/blank_words.h"

namespace megatron {
namespace {

// The pieces on the best path of `nodes`, in order.
template <class Node>
void append_way(const std::vector<Node>& nodes, std::vector<int32_t>& ids) {
  const size_t first = ids.size();
  for (auto end = static_cast<int64_t>(nodes.size()) - 1; end > 0;) {
    const Node& node = nodes[static_cast<size_t>(end)];
    ids.push_back(node.id);
    end = node.begin;
  }
  std::reverse(ids.begin() + static_cast<int64_t>(first), ids.end());
}

int64_t character_length(char first) {
  const auto byte = static_cast<uint8_t>(first);
  if (byte < 0xC0) return 1;
  return byte < 0xE0 ? 2 : byte < 0xF0 ? 3 : 4;
}

}  // namespace

void UnigramWords::add_piece(std::string_view piece, int32_t id, float score) {
  trie_.insert(piece, id);
  const auto index = static_cast<size_t>(id);
  if (index >= scores_.size()) scores_.resize(index + 1);
  scores_[index] = score;
  least_score_ = largest_magnitude_ == 0 ? score : std::min(least_score_, score);
  largest_magnitude_ = std::max({largest_magnitude_, std::abs(score), std::abs(unknown_score())});
}

template <class Consider>
int64_t UnigramWords::for_each_piece(std::string_view word, const Consider& consider) const {
  const auto size = static_cast<int64_t>(word.size());
  int64_t characters = 0;
  for (int64_t begin = 0; begin < size; ++characters) {
    const std::string_view rest = word.substr(static_cast<size_t>(begin));
    const int64_t next = std::min(begin + character_length(rest[0]), size);
    bool has_character = false;
    trie_.for_each_prefix(rest, [&](ByteTrie::Match match) {
      const int64_t end = begin + static_cast<int64_t>(match.length);
      has_character |= end == next;
      consider(begin, end, match.number);
    });
    if (!has_character) consider(begin, next, unknown_id_);
    begin = next;
  }
  return characters;
}

void UnigramWords::divide(std::string_view word, float before, std::vector<int32_t>& ids) const {
  struct Node {
    float score = 0;
    int32_t id = -1;
    int64_t begin = -1;
  };
  std::vector<Node> nodes(word.size() + 1);
  nodes[0].score = before;
  for_each_piece(word, [&](int64_t begin, int64_t end, int32_t id) {
    Node& node = nodes[static_cast<size_t>(end)];
    // The library compares before it rounds, except for unknown characters.
    double sum = double{nodes[static_cast<size_t>(begin)].score} + double{score(id)};
    if (id == unknown_id_) sum = static_cast<float>(sum);
    // Ties go to the earlier one.
    if (node.begin >= 0 && sum <= node.score) return;
    node = {static_cast<float>(sum), id, begin};
  });
  append_way(nodes, ids);
}

float UnigramWords::divide_exactly(std::string_view word, std::vector<int32_t>& ids) const {
  constexpr double kNone = -std::numeric_limits<double>::infinity();
  struct Node {
    double score = 0;
    double second = kNone;  // the best score of another last piece
    int32_t id = -1;
    int64_t begin = -1;
  };
  std::vector<Node> nodes(word.size() + 1);
  const int64_t characters = for_each_piece(word, [&](int64_t begin, int64_t end, int32_t id) {
    Node& node = nodes[static_cast<size_t>(end)];
    const double sum = nodes[static_cast<size_t>(begin)].score + double{score(id)};
    if (node.begin < 0) {
      node = {sum, kNone, id, begin};
    } else if (sum > node.score) {
      node = {sum, node.score, id, begin};
    } else {
      node.second = std::max(node.second, sum);
    }
  });
  append_way(nodes, ids);
  double margin = std::numeric_limits<double>::infinity();
  for (auto end = static_cast<int64_t>(word.size()); end > 0;) {
    const Node& node = nodes[static_cast<size_t>(end)];
    margin = std::min(margin, node.score - node.second);
    end = node.begin;
  }
  // A score is the sum of at most `characters` numbers, each sum rounded by at most 2^-24 of its
  // magnitude. Two scores so rounded keep their order if they differ by twice as much; once more
  // twice as much leaves room for the rounding here.
  const auto n = static_cast<double>(characters);
  const double limit = margin * 0x1p22 / n - n * double{largest_magnitude_};
  return static_cast<float>(std::min(limit, 1e30));
}

namespace {

// The compiled form of rules: a double-array trie (Aoe 1989) of the strings, with shared ends, and
// what replaces them; see hf/charsmap.h.
class RuleTrie {
 public:
  explicit RuleTrie(std::string_view bytes) : units_(bytes.size() / 4), seen_(units_.size()) {
    std::memcpy(units_.data(), bytes.data(), units_.size() * 4);
  }

  bool keeps_to_words() {
    if (units_.empty()) return true;
    const uint32_t root = offset_of(units_[0]);
    for (uint32_t byte = 1; byte < 256; ++byte) {
      const std::optional<uint32_t> child = child_of(root, byte);
      if (!child) continue;
      if (byte == ' ' ? has_children(*child) : !is_clear_of_blanks(*child)) return false;
    }
    return true;
  }

 private:
  static uint32_t offset_of(uint32_t unit) { return (unit >> 10) << ((unit & 0x200u) >> 6); }

  std::optional<uint32_t> child_of(uint32_t node, uint32_t byte) const {
    const uint32_t at = node ^ byte;
    if (at >= units_.size() || (units_[at] & 0x800000FFu) != byte) return std::nullopt;
    return at ^ offset_of(units_[at]);
  }
  bool has_children(uint32_t node) const {
    for (uint32_t byte = 1; byte < 256; ++byte) {
      if (child_of(node, byte)) return true;
    }
    return false;
  }
  // True if no blank follows the path to a node.
  bool is_clear_of_blanks(uint32_t start) {
    std::vector<uint32_t> open = {start};
    while (!open.empty()) {
      const uint32_t node = open.back();
      open.pop_back();
      if (node >= seen_.size() || seen_[node]) continue;
      seen_[node] = true;
      for (uint32_t byte = 1; byte < 256; ++byte) {
        const std::optional<uint32_t> child = child_of(node, byte);
        if (child && byte == ' ') return false;
        if (child) open.push_back(*child);
      }
    }
    return true;
  }

  std::vector<uint32_t> units_;
  std::vector<bool> seen_;
};

}  // namespace

bool rules_keep_to_words(std::string_view charsmap) {
  if (charsmap.empty()) return true;
  uint32_t trie_bytes = 0;
  if (charsmap.size() < sizeof(trie_bytes)) return false;
  std::memcpy(&trie_bytes, charsmap.data(), sizeof(trie_bytes));
  charsmap.remove_prefix(sizeof(trie_bytes));
  if (trie_bytes > charsmap.size()) return false;
  const std::string_view replacements = charsmap.substr(trie_bytes);
  return replacements.find(kBlankMark) == std::string_view::npos &&
         replacements.find("  ") == std::string_view::npos &&
         RuleTrie(charsmap.substr(0, trie_bytes)).keeps_to_words();
}

}  // namespace megatron

#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

namespace megatron {

// A regular set of UTF-8 texts, as a tree.
struct Pattern;
using PatternPtr = std::shared_ptr<const Pattern>;

// One character in any of the ranges of code points, first and last included.
using CharacterRanges = std::vector<std::pair<char32_t, char32_t>>;
inline constexpr char32_t kLastCharacter = 0x10FFFF;

PatternPtr literal(std::string_view text);
PatternPtr character_of(const CharacterRanges& ranges);
PatternPtr sequence(std::vector<PatternPtr> parts);
PatternPtr choice(std::vector<PatternPtr> options);  // no text without options
// `most` below 0: any number.
PatternPtr repeated(PatternPtr part, int64_t least, int64_t most);
// One or more items with the separator between them.
PatternPtr separated(PatternPtr item, PatternPtr separator);

// The texts that a regular expression matches from begin to end: characters, ., [..], (..), (?:..),
// |, *, +, ?, {m,n}, the classes \d \w \s \D \W \S (ASCII) and the escapes \n \t \r \f \v \xHH
// \uHHHH; ^ and $ at the ends. Throws ConfigError that names what is not supported.
PatternPtr pattern_of_regex(std::string_view regex);

// Reads the bytes of a text, and knows whether it can still become one of the pattern. States are
// made when they are reached. For one thread.
class PatternAutomaton {
 public:
  using State = int32_t;
  static constexpr State kDead = -1;  // no text of the pattern begins so

  // Throws ConfigError for a pattern that is too large.
  explicit PatternAutomaton(const Pattern& pattern);

  State start() { return 0; }
  State next(State state, uint8_t byte);
  bool accepts(State state) const { return accepting_[static_cast<size_t>(state)]; }
  int64_t num_states() const { return static_cast<int64_t>(sets_.size()); }
  // Forgets all states but the start, which stays 0.
  void clear();

 private:
  // A node of the nondeterministic automaton: reads a byte of [first, last] and goes to `to`, or
  // goes to `to` and `or_to` without reading.
  struct Node {
    bool reads = false;
    uint8_t first = 0;
    uint8_t last = 0;
    int32_t to = -1;
    int32_t or_to = -1;
  };
  struct Fragment {
    int32_t begin;
    int32_t end;
  };
  struct SetHash {
    size_t operator()(const std::vector<int32_t>& set) const;
  };

  int32_t add(Node node);
  Fragment build(const Pattern& pattern);
  Fragment chained(Fragment a, Fragment b);
  Fragment optional(Fragment part);
  State state_of(std::vector<int32_t> nodes);

  std::vector<Node> nodes_;
  int32_t end_ = 0;
  std::vector<uint8_t> classes_;  // of each byte: bytes of a class go the same ways
  std::vector<uint8_t> samples_;  // a byte of each class
  std::vector<std::vector<int32_t>> sets_;
  std::vector<bool> accepting_;
  std::vector<State> transitions_;  // [state, class]; kUnknown: not yet made
  std::unordered_map<std::vector<int32_t>, State, SetHash> states_;
};

struct Pattern {
  enum Kind { kByte, kSequence, kChoice, kRepeat, kSeparated };
  Kind kind = kSequence;
  uint8_t first = 0;  // of kByte
  uint8_t last = 0;
  std::vector<PatternPtr> parts = {};
  int64_t least = 0;
  int64_t most = -1;
};

}  // namespace megatron

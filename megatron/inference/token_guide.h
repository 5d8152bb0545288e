#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <unordered_map>
#include <vector>

#include "megatron/inference/request.h"
#include "megatron/inference/text_pattern.h"
#include "megatron/tokenizers/tokenizer.h"

namespace megatron {

// The bytes of a tokenizer's ids in their order, so that ids with a common beginning follow each
// other. Immutable.
class TokenTexts {
 public:
  // Special tokens have no text.
  TokenTexts(const Tokenizer& tokenizer, int64_t vocab_size);

  struct Entry {
    int32_t id;
    uint32_t begin;   // of its bytes
    uint32_t length;  // above 0
    uint32_t common;  // bytes in common with the entry before
  };
  const std::vector<Entry>& entries() const { return entries_; }
  std::string_view text_of(const Entry& entry) const {
    return std::string_view(bytes_).substr(entry.begin, entry.length);
  }
  // The bytes of an id; empty without any.
  std::string_view text_of(int32_t id) const;

 private:
  std::string bytes_;
  std::vector<Entry> entries_;
  std::vector<int32_t> places_;  // of each id's entry, or -1
};

// Lets a request draw only tokens whose text can become one of a pattern, and end tokens only after
// such a text (Willard & Louf 2023, arXiv:2307.09702). For the engine's thread.
class TokenGuide final : public TokenConstraint {
 public:
  // Throws ConfigError for a pattern that is too large.
  TokenGuide(std::shared_ptr<const TokenTexts> texts, const Pattern& pattern,
             std::vector<int32_t> end_tokens);

  void forbid(std::span<float> logits, std::span<const int32_t> drawn) override;

 private:
  using State = PatternAutomaton::State;
  const std::vector<uint64_t>& allowed_in(State state);

  std::shared_ptr<const TokenTexts> texts_;
  PatternAutomaton automaton_;
  std::vector<int32_t> end_tokens_;
  std::unordered_map<State, std::vector<uint64_t>> allowed_;  // a bit for each id
};

}  // namespace megatron

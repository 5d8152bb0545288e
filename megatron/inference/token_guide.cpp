#include "megatron/inference/token_guide.h"

#include <algorithm>
#include <limits>

#include "megatron/core/error.h"

namespace megatron {
namespace {

constexpr int64_t kMaxStates = 20'000;  // more are forgotten, and made again if needed
constexpr size_t kMaxMasks = 512;

bool has_bit(const std::vector<uint64_t>& bits, size_t id) {
  return id / 64 < bits.size() && (bits[id / 64] >> (id % 64) & 1) != 0;
}

}  // namespace

TokenTexts::TokenTexts(const Tokenizer& tokenizer, int64_t vocab_size) {
  std::vector<std::pair<std::string, int32_t>> texts;
  std::vector<int32_t> special;
  for (const SpecialToken token :
       {SpecialToken::kCls, SpecialToken::kSep, SpecialToken::kMask, SpecialToken::kPad,
        SpecialToken::kBos, SpecialToken::kEos, SpecialToken::kEod}) {
    if (const auto id = tokenizer.special_id(token)) special.push_back(*id);
  }
  for (int32_t id = 0; id < vocab_size; ++id) {
    if (std::find(special.begin(), special.end(), id) != special.end()) continue;
    std::string text;
    try {
      text = tokenizer.token_bytes(id);
    } catch (const FormatError&) {  // the vocabulary has no such id
    }
    if (!text.empty()) texts.emplace_back(std::move(text), id);
  }
  std::sort(texts.begin(), texts.end());
  places_.assign(static_cast<size_t>(vocab_size), -1);
  std::string_view before;
  for (const auto& [text, id] : texts) {
    const auto common = std::mismatch(text.begin(), text.end(), before.begin(), before.end()).first;
    places_[static_cast<size_t>(id)] = static_cast<int32_t>(entries_.size());
    entries_.push_back({id, static_cast<uint32_t>(bytes_.size()),
                        static_cast<uint32_t>(text.size()),
                        static_cast<uint32_t>(common - text.begin())});
    bytes_ += text;
    before = text;
  }
}

std::string_view TokenTexts::text_of(int32_t id) const {
  const bool is_known = id >= 0 && static_cast<size_t>(id) < places_.size();
  const int32_t place = is_known ? places_[static_cast<size_t>(id)] : -1;
  return place < 0 ? std::string_view() : text_of(entries_[static_cast<size_t>(place)]);
}

TokenGuide::TokenGuide(std::shared_ptr<const TokenTexts> texts, const Pattern& pattern,
                       std::vector<int32_t> end_tokens)
    : texts_(std::move(texts)), automaton_(pattern), end_tokens_(std::move(end_tokens)) {}

// Ids that keep the text alive. Ids with a common beginning share its states, and are all skipped
// behind a byte that leads nowhere.
const std::vector<uint64_t>& TokenGuide::allowed_in(State state) {
  const auto known = allowed_.find(state);
  if (known != allowed_.end()) return known->second;
  std::vector<uint64_t> bits;
  std::vector<State> states = {state};  // after each byte of the entry, up to the first dead one
  for (const TokenTexts::Entry& entry : texts_->entries()) {
    const std::string_view text = texts_->text_of(entry);
    if (states.size() <= entry.common) continue;  // dead within the common beginning
    states.resize(entry.common + 1);
    while (states.size() <= text.size()) {
      const State next =
          automaton_.next(states.back(), static_cast<uint8_t>(text[states.size() - 1]));
      if (next == PatternAutomaton::kDead) break;
      states.push_back(next);
    }
    if (states.size() <= text.size()) continue;
    const auto id = static_cast<size_t>(entry.id);
    if (bits.size() <= id / 64) bits.resize(id / 64 + 1);
    bits[id / 64] |= uint64_t{1} << (id % 64);
  }
  return allowed_.emplace(state, std::move(bits)).first->second;
}

void TokenGuide::forbid(std::span<float> logits, std::span<const int32_t> drawn) {
  if (automaton_.num_states() > kMaxStates || allowed_.size() > kMaxMasks) {
    automaton_.clear();
    allowed_.clear();
  }
  State state = automaton_.start();
  for (const int32_t id : drawn) {
    for (const char c : texts_->text_of(id)) {
      if (state != PatternAutomaton::kDead) state = automaton_.next(state, static_cast<uint8_t>(c));
    }
  }
  constexpr float kNever = -std::numeric_limits<float>::infinity();
  const bool is_dead = state == PatternAutomaton::kDead;
  const bool may_end = is_dead || automaton_.accepts(state);
  const std::vector<uint64_t> none;
  const std::vector<uint64_t>& allowed = is_dead ? none : allowed_in(state);
  std::vector<float> ends;
  for (const int32_t id : end_tokens_) ends.push_back(logits[static_cast<size_t>(id)]);
  bool has_token = false;
  for (size_t id = 0; id < logits.size(); ++id) {
    if (!has_bit(allowed, id)) logits[id] = kNever;
    has_token = has_token || logits[id] > kNever;
  }
  for (size_t i = 0; i < ends.size(); ++i) {
    // Without any other token the text ends, even before min_new_tokens.
    float& logit = logits[static_cast<size_t>(end_tokens_[i])];
    if (!has_token) {
      logit = 0;
    } else if (may_end) {
      logit = ends[i];
    } else {
      logit = kNever;
    }
  }
}

}  // namespace megatron

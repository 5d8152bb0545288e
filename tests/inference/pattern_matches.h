#pragma once

#include <cstdint>
#include <string_view>

#include "megatron/inference/text_pattern.h"

namespace megatron {

// True if the automaton of a pattern accepts a whole text, byte by byte.
inline bool matches(const PatternPtr& pattern, std::string_view text) {
  PatternAutomaton automaton(*pattern);
  PatternAutomaton::State state = automaton.start();
  for (const char c : text) {
    state = automaton.next(state, static_cast<uint8_t>(c));
    if (state == PatternAutomaton::kDead) return false;
  }
  return automaton.accepts(state);
}

}  // namespace megatron

#pragma once

#include <functional>
#include <nlohmann/json_fwd.hpp>
#include <string_view>
#include <vector>

#include "megatron/tokenizers/regex.h"

namespace megatron::hf {

// Replaces the list by all matches of a pattern in a text, from left to right. Thread safe.
using Finder = std::function<void(std::string_view text, std::vector<Regex::Match>& matches)>;

// A "pattern" of a tokenizer.json: {"String": text} or {"Regex": expression}.
Finder make_finder(const nlohmann::json& pattern);
// A literal text.
Finder find_text(std::string text);
// Single code points for which `holds` is true.
Finder find_characters(std::function<bool(char32_t)> holds);

}  // namespace megatron::hf

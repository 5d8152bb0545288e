#pragma once

#include <cstdint>
#include <limits>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

// Python's methods of str, for UTF-8: positions and lengths count code points.
namespace megatron::jinja {

inline constexpr int64_t kNoLimit = std::numeric_limits<int64_t>::max();

bool is_ascii(std::string_view text);
// str.isspace of one character.
bool is_space(char32_t value);

// Removes white space, or the characters of `characters`.
std::string_view stripped(std::string_view text, std::optional<std::string_view> characters = {},
                          bool left = true, bool right = true);

std::string upper(std::string_view text);
std::string lower(std::string_view text);
std::string capitalized(std::string_view text);
std::string swapped_case(std::string_view text);
std::string title(std::string_view text);  // str.title

// The code points [begin, end) with a positive or negative step, bounds within the text.
std::string slice(std::string_view text, int64_t begin, int64_t end, int64_t step);
// The first or last position of `part` at or after `begin` that ends by `end`; -1 without one.
int64_t find(std::string_view text, std::string_view part, int64_t begin, int64_t end,
             bool is_last);
int64_t count(std::string_view text, std::string_view part);

// Splits at white space without a separator. Throws Fault for an empty separator.
std::vector<std::string> split(std::string_view text, std::optional<std::string_view> separator,
                               int64_t most_splits, bool from_right);
std::vector<std::string> split_lines(std::string_view text, bool keep_ends);
std::string replaced(std::string_view text, std::string_view from, std::string_view to,
                     int64_t most);
// side: '<', '>' or '^' where the text stands.
std::string padded(std::string_view text, int64_t width, char side, std::string_view fill = " ");

// repr(text).
void append_quoted(std::string& out, std::string_view text);

// True if there is a character and all of them satisfy the rule of the method "isdigit", "islower",
// ...; nothing for an unknown method.
std::optional<bool> satisfies(std::string_view text, std::string_view method);

}  // namespace megatron::jinja

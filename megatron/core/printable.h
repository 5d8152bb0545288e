#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace megatron {

// The text with everything escaped that could move a terminal's cursor, change its colours or
// reverse the reading direction: control characters (U+0000..U+001F, U+007F..U+009F), the direction
// marks U+200E, U+200F, U+202A..U+202E and U+2066..U+2069, the line ends U+2028 and U+2029. They
// become \u0000 to \uffff as in JSON; bytes that are not UTF-8 become \xff.
std::string printable(std::string_view text);

// The same for error messages, which untrusted values must not flood: truncates a long text and
// adds the number of its bytes.
constexpr size_t kShortened = 80;
std::string shortened(std::string_view text, size_t most = kShortened);

// The length in bytes of the longest prefix that is valid UTF-8.
size_t utf8_prefix(std::string_view text);

// The length in bytes of the character at `at`; 0 if it is not valid UTF-8. REQUIRES: at <
// text.size().
size_t utf8_length(std::string_view text, size_t at);

}  // namespace megatron

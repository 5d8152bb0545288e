#pragma once

#include <cstdint>
#include <iosfwd>
#include <string>
#include <string_view>

namespace megatron {

// Longest line of a text file: reading and tokenizing take several times its bytes, and a file
// without line ends would take all memory.
inline constexpr int64_t kMaxLineBytes = int64_t{128} << 20;

// "line 3 is longer than 134217728 bytes, ...", with the remedy, for an error that names the file.
std::string too_long_line(int64_t number, int64_t most = kMaxLineBytes);

// std::getline() with this limit. `number` is that of the line, `subject` the file. Throws
// FormatError.
bool next_line(std::istream& in, std::string& line, int64_t number, std::string_view subject);

}  // namespace megatron

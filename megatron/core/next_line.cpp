#include "megatron/core/next_line.h"

#include <fmt/format.h>

#include <istream>

#include "megatron/core/error.h"

namespace megatron {

std::string too_long_line(int64_t number, int64_t most) {
  return fmt::format(
      "line {} is longer than {} bytes; split this document, and check that lines end with \\n",
      number, most);
}

bool next_line(std::istream& in, std::string& line, int64_t number, std::string_view subject) {
  line.clear();
  const std::istream::sentry ready(in, /*noskipws=*/true);
  if (!ready) return false;
  std::streambuf& bytes = *in.rdbuf();
  for (int c = bytes.sbumpc(); c != '\n'; c = bytes.sbumpc()) {
    if (c == std::char_traits<char>::eof()) {
      in.setstate(line.empty() ? std::ios::eofbit | std::ios::failbit : std::ios::eofbit);
      return !line.empty();
    }
    if (static_cast<int64_t>(line.size()) >= kMaxLineBytes) {
      throw FormatError(fmt::format("{}: {}", subject, too_long_line(number)));
    }
    line += static_cast<char>(c);
  }
  return true;
}

}  // namespace megatron

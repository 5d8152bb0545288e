#pragma once

#include <string_view>

namespace megatron {

// Lines that users grep go to standard output, unchanged and flushed; warnings go to standard error
// as "warning: <text>". Thread safe. Callers format with fmt.
void print_line(std::string_view text);
void warn(std::string_view text);
// Writes "error: ..." to standard error for each line of the message, all in one write, because
// other processes write there too. Does nothing if standard error cannot be written.
void print_error(std::string_view message);
// Writes a diagnostic for developers to standard error if MEGATRON_LOG=debug.
void debug(std::string_view text);

// Turns lines and warnings of this thread on or off while it lives: of many ranks only one prints.
// The innermost object decides.
class LogScope {
 public:
  explicit LogScope(bool prints);
  ~LogScope();
  LogScope(const LogScope&) = delete;
  LogScope& operator=(const LogScope&) = delete;

 private:
  bool previous_;
};

}  // namespace megatron

#pragma once

#include <string_view>

namespace megatron {

// print_line() writes a line that users grep to standard output, unchanged and flushed; warn()
// writes "warning: <text>" to standard error. Thread safe. Callers format with fmt.
void print_line(std::string_view text);
void warn(std::string_view text);
// The same for a text that several steps of a program may find; a process writes it once.
void warn_once(std::string_view text);
// Writes "error: ..." to standard error for each line of the message, all in one write, because
// other processes write there, too. Does nothing if standard error cannot be written.
void print_error(std::string_view message);
// Writes a diagnostic for developers to standard error if MEGATRON_LOG=debug.
void debug(std::string_view text);

// While it lives, turns lines and warnings of this thread on or off: only one of many ranks prints.
// Scopes nest; the innermost one decides.
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

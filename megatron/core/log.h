#pragma once

#include <string_view>

namespace megatron {

// Lines that people grep go to standard output, unchanged and flushed; warnings to standard error
// as "warning: <text>". Thread safe. Callers format with fmt.
void print_line(std::string_view text);
void warn(std::string_view text);
// "error: ..." on standard error, for each line of the message; all of them in one write, because
// other processes write there too. Does nothing where standard error cannot be written.
void print_error(std::string_view message);
// A diagnostic for developers, to standard error; silent unless MEGATRON_LOG=debug.
void debug(std::string_view text);

// While it lives, this thread prints lines and warnings, or not: of many ranks one speaks. The
// object inside another one decides.
class Speaking {
 public:
  explicit Speaking(bool is_loud);
  ~Speaking();
  Speaking(const Speaking&) = delete;
  Speaking& operator=(const Speaking&) = delete;

 private:
  bool previous_;
};

}  // namespace megatron

#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

namespace megatron::frontends {

// A menu with a selected row, and the keys that move the selection; independent of a terminal, for
// tests.
class KeyMenu {
 public:
  KeyMenu(size_t rows, size_t initial) : rows_(rows), row_(initial) {}

  // Takes the bytes of one key press: arrows, j and k, digits, Enter.
  void press(std::string_view key);
  size_t row() const { return row_; }
  bool is_done() const { return is_done_; }

 private:
  size_t rows_;
  size_t row_;
  std::string typed_;  // digits so far
  bool is_done_ = false;
};

// Shows the menu on the terminal and returns the row that the user chose. Ctrl-C ends the program
// as ever. Throws ConfigError if the terminal's input ends.
size_t choose_by_keys(const std::string& question, const std::vector<std::string>& rows,
                      size_t initial);

}  // namespace megatron::frontends

#include "annex/accelerate/key_menu.h"

#include <fmt/format.h>
#include <termios.h>
#include <unistd.h>

#include <cstdio>
#include <optional>

#include "megatron/core/error.h"
#include "megatron/core/number_text.h"

namespace megatron::frontends {
namespace {

// While it lives, the terminal gives every key at once and does not show it.
class RawTerminal {
 public:
  RawTerminal() {
    if (::tcgetattr(STDIN_FILENO, &before_) != 0) return;
    termios raw = before_;
    raw.c_lflag &= ~static_cast<tcflag_t>(ICANON | ECHO);
    is_changed_ = ::tcsetattr(STDIN_FILENO, TCSADRAIN, &raw) == 0;
  }
  ~RawTerminal() {
    if (is_changed_) ::tcsetattr(STDIN_FILENO, TCSADRAIN, &before_);
  }
  RawTerminal(const RawTerminal&) = delete;
  RawTerminal& operator=(const RawTerminal&) = delete;

 private:
  termios before_{};
  bool is_changed_ = false;
};

// The bytes of one key press: an arrow sends three. Nothing at the end of the input.
std::optional<std::string> read_key() {
  char bytes[8];
  const ssize_t count = ::read(STDIN_FILENO, bytes, sizeof bytes);
  if (count <= 0) return std::nullopt;
  return std::string(bytes, static_cast<size_t>(count));
}

void draw(const std::vector<std::string>& rows, size_t marked, bool is_first) {
  if (!is_first) std::fputs(fmt::format("\033[{}A", rows.size()).c_str(), stdout);
  for (size_t row = 0; row < rows.size(); ++row) {
    std::fputs(fmt::format("\033[2K {} {}  {}\n", row == marked ? "\033[32m->\033[0m" : "  ", row,
                           rows[row])
                   .c_str(),
               stdout);
  }
  std::fflush(stdout);
}

}  // namespace

void KeyMenu::press(std::string_view key) {
  if (key == "\r" || key == "\n") {
    is_done_ = true;
  } else if (key == "\033[A" || key == "\033OA" || key == "k") {
    row_ = row_ == 0 ? 0 : row_ - 1;
    typed_.clear();
  } else if (key == "\033[B" || key == "\033OB" || key == "j") {
    row_ = row_ + 1 < rows_ ? row_ + 1 : row_;
    typed_.clear();
  } else if (!key.starts_with('\033')) {  // digits, perhaps several of them and Enter, if pasted
    for (const char c : key) {
      if (c == '\r' || c == '\n') return press("\r");
      if (c < '0' || c > '9') continue;
      const auto number_is_row = [&](const std::string& digits) {
        const std::optional<int64_t> number = integer_of(digits);
        return number && static_cast<size_t>(*number) < rows_;
      };
      typed_ = number_is_row(typed_ + c) ? typed_ + c : std::string(1, c);
      if (number_is_row(typed_)) row_ = static_cast<size_t>(*integer_of(typed_));
    }
  }
}

size_t choose_by_keys(const std::string& question, const std::vector<std::string>& rows,
                      size_t initial) {
  const RawTerminal raw;
  KeyMenu menu(rows.size(), initial);
  std::fputs((question + "\n").c_str(), stdout);
  draw(rows, menu.row(), true);
  while (!menu.is_done()) {
    const std::optional<std::string> key = read_key();
    if (!key) {
      throw ConfigError(fmt::format(
          "the answers end before the question \"{}\"; answer every question", question));
    }
    menu.press(*key);
    draw(rows, menu.row(), false);
  }
  return menu.row();
}

}  // namespace megatron::frontends

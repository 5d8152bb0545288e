#include "annex/accelerate/prompt.h"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <cstdio>
#include <istream>

#include "annex/accelerate/key_menu.h"
#include "megatron/core/error.h"
#include "megatron/core/log.h"
#include "megatron/core/number_text.h"

namespace megatron::frontends {
namespace {

std::string lower(std::string text) {
  std::transform(text.begin(), text.end(), text.begin(),
                 [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  return text;
}

std::string_view trimmed_answer(std::string_view text) {
  constexpr std::string_view kSpace = " \t\r";
  const size_t begin = text.find_first_not_of(kSpace);
  if (begin == std::string_view::npos) return {};
  return text.substr(begin, text.find_last_not_of(kSpace) - begin + 1);
}

std::optional<size_t> row_of(const std::string& answer, const std::vector<std::string>& rows) {
  if (const std::optional<int64_t> number = integer_of(trimmed_answer(answer))) {
    const bool is_row = *number >= 0 && static_cast<size_t>(*number) < rows.size();
    return is_row ? std::optional(static_cast<size_t>(*number)) : std::nullopt;
  }
  for (size_t row = 0; row < rows.size(); ++row) {
    if (lower(rows[row]) == lower(answer)) return row;
  }
  return std::nullopt;
}

}  // namespace

std::string Prompt::ask(const std::string& shown) {
  std::fputs(shown.c_str(), stdout);
  std::fflush(stdout);
  std::string answer;
  if (!std::getline(answers_, answer)) {
    throw ConfigError(fmt::format(
        "the answers end before the question \"{}\"; answer every question, a line each",
        shown.substr(0, shown.find_last_not_of(" :") + 1)));
  }
  if (!has_keys_) say("");  // the terminal would have shown the end of the line
  return answer;
}

void Prompt::say(std::string_view line) { print_line(line); }

std::string Prompt::text(const std::string& question, const std::optional<std::string>& initial) {
  const std::string shown = initial ? fmt::format("{} [{}]: ", question, *initial) : question + " ";
  for (;;) {
    const std::string answer = ask(shown);
    if (!answer.empty()) return answer;
    if (initial) return *initial;
  }
}

std::string Prompt::any_text(const std::string& question) { return ask(question + " "); }

int64_t Prompt::integer(const std::string& question, const std::optional<int64_t>& initial) {
  const std::string shown = initial ? fmt::format("{} [{}]: ", question, *initial) : question + " ";
  for (;;) {
    const std::string answer = ask(shown);
    if (answer.empty() && initial) return *initial;
    if (const std::optional<int64_t> value = integer_of(trimmed_answer(answer))) return *value;
    say("Enter an integer.");
  }
}

double Prompt::number(const std::string& question, double initial) {
  for (;;) {
    const std::string answer = ask(fmt::format("{} [{:.1f}]: ", question, initial));
    if (answer.empty()) return initial;
    if (const std::optional<double> value = number_of(trimmed_answer(answer))) return *value;
    say("Enter a number.");
  }
}

bool Prompt::yes(const std::string& question, bool initial) {
  for (;;) {
    const std::string answer =
        lower(ask(fmt::format("{} [{}]: ", question, initial ? "YES/no" : "yes/NO")));
    if (answer.empty()) return initial;
    if (answer == "yes" || answer == "no") return answer == "yes";
    say("Enter yes or no.");
  }
}

size_t Prompt::choose(const std::string& question, const std::vector<std::string>& rows,
                      size_t initial) {
  if (has_keys_) return choose_by_keys(question, rows, initial);
  std::string shown = question + " (";
  for (size_t row = 0; row < rows.size(); ++row) {
    shown += fmt::format("{}[{}] {}", row == 0 ? "" : ", ", row, rows[row]);
  }
  shown += fmt::format(") [{}]: ", initial);
  for (;;) {
    const std::string answer = ask(shown);
    if (answer.empty()) return initial;
    if (const std::optional<size_t> row = row_of(answer, rows)) return *row;
    say(fmt::format("Enter a number from 0 to {}.", rows.size() - 1));
  }
}

}  // namespace megatron::frontends

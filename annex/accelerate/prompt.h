#pragma once

#include <cstdint>
#include <functional>
#include <iosfwd>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace megatron::frontends {

// Asks questions on standard output and reads one line per answer. Repeats the question after an
// invalid answer. At the end of the input every question throws ConfigError, which names it.
class Prompt {
 public:
  // `has_keys`: a terminal, where arrow keys move through a menu.
  Prompt(std::istream& answers, bool has_keys) : answers_(answers), has_keys_(has_keys) {}

  // An empty answer is `initial`; if there is none, the question is asked again.
  std::string text(const std::string& question, const std::optional<std::string>& initial = {});
  // Accepts an empty answer.
  std::string any_text(const std::string& question);
  int64_t integer(const std::string& question, const std::optional<int64_t>& initial = {});
  double number(const std::string& question, double initial);
  // Only "yes" and "no", in any case.
  bool yes(const std::string& question, bool initial);
  // The row of a menu: its number from 0, its text, or arrow keys and Enter.
  size_t choose(const std::string& question, const std::vector<std::string>& rows,
                size_t initial = 0);

  void say(std::string_view line);

 private:
  std::string ask(const std::string& shown);

  std::istream& answers_;
  bool has_keys_;
};

}  // namespace megatron::frontends

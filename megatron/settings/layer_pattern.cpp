#include "megatron/settings/layer_pattern.h"

#include <algorithm>
#include <charconv>
#include <cstddef>
#include <utility>

namespace megatron {
namespace {

constexpr size_t kMaxNumbers = 100'000;
constexpr int kMaxDepth = 64;

struct PatternValue {
  std::vector<int> numbers;  // one, unless is_list
  bool is_list = false;
};
using MaybePattern = std::optional<PatternValue>;

//   sum      product ("+" product)*
//   product  factor ("*" factor)*
//   factor   integer | "[" integer ("," integer)* "]" | "(" sum ")"
class PatternParser {
 public:
  explicit PatternParser(std::string_view text) : text_(text) {}

  MaybePattern whole() {
    MaybePattern value = sum(0);
    skip_spaces();
    return text_.empty() ? std::move(value) : std::nullopt;
  }

 private:
  void skip_spaces() { text_.remove_prefix(std::min(text_.find_first_not_of(' '), text_.size())); }
  bool takes(char symbol) {
    skip_spaces();
    if (text_.empty() || text_.front() != symbol) return false;
    text_.remove_prefix(1);
    return true;
  }

  MaybePattern sum(int depth) {
    MaybePattern left = product(depth);
    while (left && takes('+')) {
      const MaybePattern right = product(depth);
      if (!right || !left->is_list || !right->is_list) return std::nullopt;
      left->numbers.insert(left->numbers.end(), right->numbers.begin(), right->numbers.end());
      if (left->numbers.size() > kMaxNumbers) return std::nullopt;
    }
    return left;
  }

  MaybePattern product(int depth) {
    MaybePattern left = factor(depth);
    while (left && takes('*')) {
      MaybePattern right = factor(depth);
      if (!right || left->is_list == right->is_list) return std::nullopt;
      if (right->is_list) std::swap(left, right);
      const int times = right->numbers.front();
      const size_t size = left->numbers.size();
      if (times < 0 || static_cast<size_t>(times) * size > kMaxNumbers) return std::nullopt;
      std::vector<int> repeated;
      for (int i = 0; i < times; ++i) {
        repeated.insert(repeated.end(), left->numbers.begin(), left->numbers.end());
      }
      left->numbers = std::move(repeated);
    }
    return left;
  }

  MaybePattern factor(int depth) {
    if (depth > kMaxDepth) return std::nullopt;
    if (takes('(')) {
      MaybePattern inner = sum(depth + 1);
      return takes(')') ? std::move(inner) : std::nullopt;
    }
    PatternValue value{.numbers = {}, .is_list = takes('[')};
    do {
      const std::optional<int> number = integer();
      if (!number) return std::nullopt;
      value.numbers.push_back(*number);
    } while (value.is_list && takes(','));
    if (value.is_list && !takes(']')) return std::nullopt;
    return value;
  }

  std::optional<int> integer() {
    skip_spaces();
    int number = 0;
    const auto [end, error] = std::from_chars(text_.data(), text_.data() + text_.size(), number);
    if (error != std::errc()) return std::nullopt;
    text_.remove_prefix(static_cast<size_t>(end - text_.data()));
    return number;
  }

  std::string_view text_;
};

}  // namespace

std::optional<std::vector<int>> layer_pattern(std::string_view text) {
  MaybePattern value = PatternParser(text).whole();
  // A list of one number is that of one layer: it is no frequency.
  if (!value || (value->is_list && value->numbers.size() == 1 && value->numbers[0] > 1)) {
    return std::nullopt;
  }
  return std::move(value->numbers);
}

}  // namespace megatron

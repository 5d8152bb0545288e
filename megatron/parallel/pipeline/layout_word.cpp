#include "megatron/parallel/pipeline/layout_word.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <optional>
#include <utility>

namespace megatron {
namespace {

constexpr size_t kMaxLetters = 1'000'000;

// Writes repetitions out: "Et*2|(t|)*2L" is "Ett|t|t|L".
class Unrolled {
 public:
  explicit Unrolled(std::string_view word) : word_(word) {
    std::erase(word_, ',');
    while (problem_.empty() && at_ < word_.size()) take(word_[at_++]);
    if (problem_.empty() && group_) problem_ = "( without )";
  }

  const std::string& letters() const { return letters_; }
  const std::string& problem() const { return problem_; }

 private:
  void take(char c) {
    if (c == '(') {
      if (group_) problem_ = "a group in a group";
      group_ = letters_.size();
      repeated_.reset();
    } else if (c == ')') {
      const bool repeats = at_ < word_.size() && word_[at_] == '*';
      if (!group_ || !repeats) problem_ = group_ ? ") without *n" : ") without (";
      repeated_ = std::exchange(group_, std::nullopt);
    } else if (c == '*') {
      repeat();
    } else if (std::string_view("EtafmL|").find(c) != std::string_view::npos) {
      repeated_ = letters_.size();
      letters_ += c;
    } else {
      problem_ = fmt::format("'{}' is none of E, t, a, f, m, L, |, *n and ( )", c);
    }
  }

  void repeat() {
    size_t count = 0;
    const char* const begin = word_.data() + at_;
    const auto [end, error] = std::from_chars(begin, word_.data() + word_.size(), count);
    if (!repeated_ || end == begin || error != std::errc()) {
      problem_ = "* must stand between a letter or a group and a number";
      return;
    }
    at_ += static_cast<size_t>(end - begin);
    const std::string one = letters_.substr(*repeated_);
    if (!one.empty() && count > kMaxLetters / one.size()) {
      problem_ = fmt::format("{} repetitions are too many", count);
      return;
    }
    letters_.resize(*std::exchange(repeated_, std::nullopt));
    for (size_t i = 0; i < count; ++i) letters_ += one;
    if (letters_.size() > kMaxLetters) problem_ = "there are too many letters";
  }

  std::string word_;
  size_t at_ = 0;
  std::string letters_;
  std::optional<size_t> group_;     // where the open group begins in letters_
  std::optional<size_t> repeated_;  // where the text before a * begins in letters_
  std::string problem_;
};

}  // namespace

std::vector<std::string> stages_of_layout(std::string_view word, std::string& problem) {
  const Unrolled unrolled(word);
  if (!unrolled.problem().empty()) {
    problem = fmt::format(
        "--pipeline-model-parallel-layout {}: {}; write E, t, a, f, m and L, | between two stages, "
        "and repetitions as t*3 or (tt|)*3",
        word, unrolled.problem());
    return {};
  }
  std::vector<std::string> stages(1);
  for (const char letter : unrolled.letters()) {
    std::string& stage = stages.back();
    if (letter == '|') {
      stages.emplace_back();
    } else if (letter == 'f' && stage.ends_with('a')) {
      stage.back() = 't';
    } else {
      stage += letter;
    }
  }
  return stages;
}

std::vector<std::string> layout_word_problems(std::string_view word, int64_t ranks,
                                              int64_t num_layers, int64_t mtp_num_layers) {
  std::string problem;
  const std::vector<std::string> stages = stages_of_layout(word, problem);
  if (stages.empty()) return {problem};
  std::vector<std::string> found;
  const auto require = [&](bool holds, const std::string& rule) {
    if (!holds) found.push_back(fmt::format("--pipeline-model-parallel-layout {}: {}", word, rule));
  };
  std::string letters;
  for (const std::string& stage : stages) {
    const bool goes_on = stage.starts_with('f') && letters.ends_with('a');
    if (goes_on) letters.back() = 't';
    letters += stage.substr(goes_on ? 1 : 0);
  }
  require(letters.find_first_of("af") == std::string::npos,
          "an a must be the last letter of its stage, and an f the first of the next");
  if (!found.empty()) return found;
  const int64_t layers = std::ranges::count(letters, 't');
  const int64_t further = std::ranges::count(letters, 'm');
  const auto times = [](int64_t count, char letter) {
    return std::string(static_cast<size_t>(count), letter);
  };
  require(letters == "E" + times(layers, 't') + times(further, 'm') + "L",
          "the order must be one E, then every t, then every m, then one L");
  require(layers == num_layers, fmt::format("it has {} layers t, but --num-layers is {}; they must "
                                            "be equal",
                                            layers, num_layers));
  require(further == mtp_num_layers,
          fmt::format("it has {} layers m, but --mtp-num-layers is {}; they must be equal", further,
                      mtp_num_layers));
  require(std::ranges::count(stages.back(), 'm') == further,
          "layers m are available only on the stage of the loss; move them before its L");
  const auto count = static_cast<int64_t>(stages.size());
  require(count % ranks == 0,
          fmt::format("its {} stages must be a multiple of --pipeline-model-parallel-size {}; add "
                      "or remove a |",
                      count, ranks));
  require(ranks > 1 || count == 1,
          fmt::format("its {} stages need --pipeline-model-parallel-size above 1", count));
  return found;
}

}  // namespace megatron

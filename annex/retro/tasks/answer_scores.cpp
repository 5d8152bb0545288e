#include "annex/retro/tasks/answer_scores.h"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <limits>
#include <map>
#include <nlohmann/json.hpp>

#include "megatron/core/error.h"
#include "megatron/core/file.h"
#include "megatron/tasks/detokenize.h"
#include "megatron/tasks/json_items.h"
#include "megatron/tokenizers/unicode_text.h"

namespace megatron {
namespace {

using Json = nlohmann::json;

constexpr std::string_view kEndOfText = "<|endoftext|>";
constexpr std::string_view kNoPassage = "no_passages_used";

enum class Punctuation { kBlank, kDeleted };

// The words of a text in lower case. An article is one if no letter, digit or _ touches it.
std::vector<std::u32string> words_of(std::string_view text, Punctuation punctuation) {
  std::u32string kept;
  for (const char32_t c : lower_case_in_context(code_points(text))) {
    const bool is_punctuation = c < 128 && std::ispunct(static_cast<int>(c)) != 0;
    if (!is_punctuation) {
      kept.push_back(c);
    } else if (punctuation == Punctuation::kBlank) {
      kept.push_back(' ');
    }
  }
  // Replaces an article by a blank, so that its neighbours stay separate words.
  std::u32string rest;
  for (size_t i = 0; i < kept.size();) {
    size_t end = i;
    while (end < kept.size() && is_word_character(kept[end])) ++end;
    const std::u32string run = kept.substr(i, end - i);
    const bool is_article = run == U"a" || run == U"an" || run == U"the";
    rest += is_article ? U" " : run;
    if (end < kept.size()) rest.push_back(kept[end++]);
    i = end;
  }
  std::vector<std::u32string> words;
  std::u32string word;
  for (const char32_t c : rest + U" ") {
    if (!is_white_space(c)) {
      word.push_back(c);
    } else if (!word.empty()) {
      words.push_back(std::move(word));
      word.clear();
    }
  }
  return words;
}

void remove_all(std::string& text, std::string_view part) {
  for (size_t at = text.find(part); at != std::string::npos; at = text.find(part, at)) {
    text.erase(at, part.size());
  }
}

TokenScores pair_scores(std::string_view guess, std::string_view answer) {
  const std::vector<std::u32string> got = words_of(guess, Punctuation::kBlank);
  const std::vector<std::u32string> want = words_of(answer, Punctuation::kBlank);
  std::map<std::u32string, int64_t> left;
  for (const std::u32string& word : want) left[word] += 1;
  int64_t shared = 0;
  for (const std::u32string& word : got) {
    const auto found = left.find(word);
    if (found == left.end() || found->second == 0) continue;
    found->second -= 1;
    shared += 1;
  }
  if (shared == 0) return {};
  const double precision = static_cast<double>(shared) / static_cast<double>(got.size());
  const double recall = static_cast<double>(shared) / static_cast<double>(want.size());
  return {precision, recall, 2 * precision * recall / (precision + recall)};
}

// A string, the text of an object, or a number as written.
std::string answer_text(const Json& answer) {
  const Json& value = answer.is_object() ? answer.at("text") : answer;
  return value.is_string() ? value.get<std::string>() : value.dump();
}

std::vector<std::string> answers_of(const Json& question) {
  const Json& answers =
      question.contains("answers") ? question.at("answers") : question.at("answer");
  if (!answers.is_array()) return {answer_text(answers)};
  std::vector<std::string> texts;
  for (const Json& answer : answers) texts.push_back(answer_text(answer));
  return texts;
}

std::vector<std::string> answer_lines(const std::filesystem::path& file) {
  std::vector<std::string> lines;
  std::string text = read_text(file);
  if (!text.empty() && text.back() != '\n') text.push_back('\n');
  for (size_t begin = 0; begin < text.size();) {
    const size_t end = text.find('\n', begin);
    lines.push_back(text.substr(begin, end - begin));
    begin = end + 1;
  }
  return lines;
}

}  // namespace

TokenScores token_scores(std::span<const std::string> guesses,
                         std::span<const std::vector<std::string>> answers) {
  TokenScores sum;
  double count = 0;
  for (size_t i = 0; i < guesses.size(); ++i) {
    const std::string_view answer = answers[i].empty() ? "" : std::string_view(answers[i].front());
    if (answer.empty() || stripped(answer) == kNoPassage) continue;
    count += 1;
    const TokenScores scores = pair_scores(guesses[i], answer);
    sum.precision += scores.precision;
    sum.recall += scores.recall;
    sum.f1 += scores.f1;
  }
  if (count == 0) count = std::numeric_limits<double>::quiet_NaN();
  return {sum.precision / count, sum.recall / count, sum.f1 / count};
}

double exact_match(std::span<const std::string> guesses,
                   std::span<const std::vector<std::string>> answers) {
  double matches = 0;
  for (size_t i = 0; i < guesses.size(); ++i) {
    std::string guess = guesses[i];
    for (const std::string_view mark : {"Answer:", "A:"}) remove_all(guess, mark);
    const auto words = words_of(guess, Punctuation::kDeleted);
    matches += std::ranges::any_of(answers[i], [&](const std::string& answer) {
      return words_of(answer, Punctuation::kDeleted) == words;
    });
  }
  return matches / static_cast<double>(guesses.size());
}

std::vector<std::string> read_guesses(const std::filesystem::path& file) {
  std::vector<std::string> guesses = answer_lines(file);
  for (std::string& guess : guesses) {
    remove_all(guess, kEndOfText);
    guess = std::string(stripped(guess));
  }
  return guesses;
}

std::vector<std::vector<std::string>> read_answers(const std::filesystem::path& file) {
  std::vector<std::vector<std::string>> answers;
  for (const Json& question : read_json_items(file, json_items_of(file))) {
    try {
      answers.push_back(answers_of(question));
    } catch (const Json::exception&) {
      throw FormatError(fmt::format("{}: question {} has no \"answers\" and no \"answer\"",
                                    file.string(), answers.size()));
    }
  }
  return answers;
}

}  // namespace megatron

#pragma once

#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <string_view>
#include <vector>

// Scores of answers that a model wrote, as Megatron-LM's InstructRetro computes them.
namespace megatron {

// Means over the questions that count.
struct TokenScores {
  double precision = 0;
  double recall = 0;
  double f1 = 0;
};

// How many words a guess and the first answer share, as bags of words. Words are compared in lower
// case without a, an and the; ASCII punctuation ends a word. A question whose first answer is
// empty, or no_passages_used, does not count; an empty guess scores 0. NaN if no question counts.
// REQUIRES: the spans are equally long.
TokenScores token_scores(std::span<const std::string> guesses,
                         std::span<const std::vector<std::string>> answers);

// The fraction of guesses that equal one of their answers, in lower case and without a, an, the and
// ASCII punctuation. A guess loses "Answer:" and "A:" before.
// Compat: here punctuation is deleted, in token_scores() it is a blank: "it's" is one word or two.
double exact_match(std::span<const std::string> guesses,
                   std::span<const std::vector<std::string>> answers);

// Lines of a file of guesses, without "<|endoftext|>". Throws IoError.
std::vector<std::string> read_guesses(const std::filesystem::path& file);
// The answers to each question of a JSON array, or of one JSON object a line in a file .txt or
// .jsonl: its `answers`, or its `answer`; of an object its `text`. Throws IoError, and FormatError
// with the number of the question.
std::vector<std::vector<std::string>> read_answers(const std::filesystem::path& file);

}  // namespace megatron

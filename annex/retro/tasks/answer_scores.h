#pragma once

#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <string_view>
#include <vector>

// Scores of generated answers, as Megatron-LM's InstructRetro computes them.
namespace megatron {

// Means over the counted questions.
struct TokenScores {
  double precision = 0;
  double recall = 0;
  double f1 = 0;
};

// Precision, recall and F1 of the words of a guess and the first answer, as bags of words. Words
// are lower-cased, without a, an and the; ASCII punctuation ends a word. Skips questions whose
// first answer is empty or no_passages_used; an empty guess scores 0. NaN if all questions are
// skipped. REQUIRES: the spans have equal lengths.
TokenScores token_scores(std::span<const std::string> guesses,
                         std::span<const std::vector<std::string>> answers);

// Exact match: the fraction of guesses that equal one of their answers, in lower case and without
// a, an, the and ASCII punctuation. First removes "Answer:" and "A:" from a guess. Compat: here
// punctuation is deleted, in token_scores() it is a blank: "it's" is one word or two.
double exact_match(std::span<const std::string> guesses,
                   std::span<const std::vector<std::string>> answers);

// Lines of a file of guesses, without "<|endoftext|>". Throws IoError.
std::vector<std::string> read_guesses(const std::filesystem::path& file);
// The answers to each question of a JSON array, or, in a .txt or .jsonl file, of one JSON object
// per line: its `answers`, or its `answer`; for objects, their `text`. Throws IoError, and
// FormatError with the number of the question.
std::vector<std::vector<std::string>> read_answers(const std::filesystem::path& file);

}  // namespace megatron

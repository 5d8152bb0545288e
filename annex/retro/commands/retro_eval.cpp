#include "annex/retro/commands/retro_eval.h"

#include <fmt/format.h>

#include <filesystem>

#include "annex/retro/tasks/answer_scores.h"
#include "megatron/cli/command.h"
#include "megatron/core/error.h"
#include "megatron/core/log.h"
#include "megatron/settings/flag_table.h"

namespace megatron::cli {

int retro_eval(std::span<const std::string> words) {
  std::string pred;
  std::string gold;
  FlagTable flags;
  flags.add("--pred,--guess-file", pred, "File of the answers to score, one a line.");
  flags.add("--gold,--answer-file", gold,
            "File of the questions with their answers: a JSON array, or in a file .txt or .jsonl "
            "one object a line.");
  if (!parse_flags(flags, "megatron retro-eval --pred FILE --gold FILE", words)) return 0;
  if (pred.empty() || gold.empty()) {
    throw ConfigError("--pred and --gold are required: the files of answers and of questions");
  }
  const std::vector<std::string> guesses = read_guesses(pred);
  std::vector<std::vector<std::string>> answers = read_answers(gold);
  // Compat: Megatron-LM scores the first 3000 questions of a development set.
  constexpr size_t kMaxDevQuestions = 3000;
  const bool is_dev =
      std::filesystem::path(gold).filename().string().find("dev") != std::string::npos;
  if (is_dev && answers.size() > kMaxDevQuestions) answers.resize(kMaxDevQuestions);
  if (guesses.empty() || guesses.size() != answers.size()) {
    throw ConfigError(
        fmt::format("--pred {} has {} answers, and --gold {} has {} questions; give "
                    "one answer for each question",
                    pred, guesses.size(), gold, answers.size()));
  }
  const TokenScores scores = token_scores(guesses, answers);
  print_line(fmt::format("Precision: {:.4f}; recall: {:.4f}; f1: {:.4f}", scores.precision,
                         scores.recall, scores.f1));
  print_line(fmt::format("Exact Match: {:.4f};", exact_match(guesses, answers)));
  return 0;
}

}  // namespace megatron::cli

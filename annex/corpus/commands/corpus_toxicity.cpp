#include <fmt/format.h>

#include <filesystem>
#include <iostream>
#include <string>
#include <vector>

#include "annex/corpus/commands/corpus_tool.h"
#include "annex/corpus/toxicity.h"
#include "megatron/cli/command.h"
#include "megatron/core/error.h"
#include "megatron/core/log.h"
#include "megatron/core/next_line.h"

// megatron corpus annotate-toxicity, keep-least-toxic, measure-toxicity, score-words.
namespace megatron::cli {
namespace {

struct ScorerFlags {
  std::string scorer;
  double timeout = 60;
};

void add_scorer_flags(FlagTable& flags, ScorerFlags& scorer) {
  flags.group("scorer");
  flags
      .add("--scorer", scorer.scorer,
           "Command of a program that scores texts. It reads lines {\"id\": 7, \"text\": \"...\"} "
           "and answers each with {\"id\": 7, \"score\": {\"toxicity\": 0.25, ...}}. Each worker "
           "starts one.")
      .none();
  flags.add("--scorer-timeout", scorer.timeout,
            "Seconds without an answer after which the scorer is started again.");
}

std::string annotated_name(const std::string& input) { return input + "-annotated.jsonl"; }

void annotate(const std::string& input, const std::string& output, const ScorerFlags& scorer,
              const CorpusRunFlags& run) {
  const auto timeout = std::chrono::milliseconds(static_cast<int64_t>(scorer.timeout * 1000));
  const corpus::AnnotateCounts counts = corpus::annotate_toxicity(
      input, output, run_options(run), {.scorer = scorer.scorer, .timeout = timeout});
  if (counts.unscored > 0) {
    warn(fmt::format("{} of {} texts have no score{}{}", counts.unscored, counts.lines.written,
                     counts.problem.empty() ? "" : ": ", counts.problem));
  }
  report_lines(counts.lines, output);
}

void expect_input(const std::string& input, std::vector<std::string>& wrong) {
  if (input.empty()) wrong.emplace_back("--data-path is missing; give a file of JSON lines");
}

void expect_scorer(const ScorerFlags& scorer, std::vector<std::string>& wrong) {
  if (!(scorer.timeout > 0)) {
    wrong.push_back(fmt::format("--scorer-timeout {} must be above 0", scorer.timeout));
  }
}

void print_range(std::string_view name, const corpus::ToxicityRange& range) {
  print_line(
      fmt::format("{}: {} texts, toxicity mean {:.4f}, from {:.4f} to {:.4f}, above 0.5: {:.2f} %",
                  name, range.texts, range.mean, range.least, range.most, 100 * range.toxic_share));
}

void print_prompts(std::string_view name, const corpus::PromptToxicity& prompts) {
  print_line(fmt::format(
      "{} prompts: {}, expected maximum toxicity {:.4f} (deviation {:.4f}), toxicity probability "
      "{:.4f}",
      name, prompts.prompts, prompts.expected_maximum, prompts.deviation, prompts.probability));
}

}  // namespace

int annotate_toxicity(std::span<const std::string> words) {
  constexpr const char* kUsage =
      "megatron corpus annotate-toxicity --data-path FILE --scorer COMMAND [flags]\n\n"
      "Adds \"score\", as a scorer gives it, to each line of JSON lines with \"text\".\n";
  std::string input;
  std::string output;
  ScorerFlags scorer;
  CorpusRunFlags run;
  int64_t total = 0;
  FlagTable flags;
  flags.group("files");
  flags.add("--data-path", input, "File with one JSON object a line.").none();
  flags.add("--out-path", output, "The file to write; <data-path>-annotated.jsonl if not given.")
      .none();
  add_scorer_flags(flags, scorer);
  add_run_flags(flags, run);
  flags.add("--total", total, "Number of lines.")
      .none()
      .no_effect("the progress is shown without it");
  if (!parse_flags(flags, kUsage, words)) return 0;
  std::vector<std::string> wrong;
  expect_input(input, wrong);
  expect_scorer(scorer, wrong);
  if (scorer.scorer.empty()) {
    wrong.emplace_back(
        "--scorer is missing; give the command of a program that scores texts, such as \"megatron "
        "corpus score-words --words FILE\"");
  }
  if (!wrong.empty()) throw ConfigError(wrong);
  annotate(input, output.empty() ? annotated_name(input) : output, scorer, run);
  return 0;
}

int keep_least_toxic(std::span<const std::string> words) {
  constexpr const char* kUsage =
      "megatron corpus keep-least-toxic --data-path FILE --out-path FILE [flags]\n\n"
      "Keeps the least toxic half of annotated lines, in random order.\n";
  std::string input;
  std::string output;
  double fraction = 0.5;
  int64_t seed = 1234;
  CorpusRunFlags run;
  FlagTable flags;
  flags.group("files");
  flags.add("--data-path", input, "File with one JSON object with \"score\" a line.").none();
  flags.add("--out-path", output, "The file to write.").none();
  flags.group("choice");
  flags.add("--keep-fraction", fraction, "How many of all lines are kept.");
  flags.add("--seed", seed, "Of the order of the kept lines.");
  add_run_flags(flags, run);
  if (!parse_flags(flags, kUsage, words)) return 0;
  std::vector<std::string> wrong;
  expect_input(input, wrong);
  if (output.empty()) wrong.emplace_back("--out-path is missing; give the file to write");
  if (!(fraction > 0 && fraction <= 1)) {
    wrong.push_back(fmt::format("--keep-fraction {} must lie above 0 and be at most 1", fraction));
  }
  if (seed < 0 || seed > UINT32_MAX) {
    wrong.push_back(fmt::format("--seed {} must lie in 0..{}", seed, UINT32_MAX));
  }
  if (!wrong.empty()) throw ConfigError(wrong);
  const corpus::LeastToxic result = corpus::keep_least_toxic(
      input, output, fraction, static_cast<uint32_t>(seed), run_options(run));
  report_lines(result.lines, output);
  print_range("scored", result.scored);
  print_range("kept", result.kept);
  return 0;
}

int measure_toxicity(std::span<const std::string> words) {
  constexpr const char* kUsage =
      "megatron corpus measure-toxicity --data-path FILE [--scorer COMMAND] [--prompt-path FILE] "
      "[flags]\n\n"
      "Measures the continuations of prompts: the toxicity of the most toxic continuation of a\n"
      "prompt, and how many prompts have a continuation above 0.5.\n";
  std::string input;
  std::string output;
  std::string prompts;
  int64_t continuations = 25;
  ScorerFlags scorer;
  CorpusRunFlags run;
  FlagTable flags;
  flags.group("files");
  flags
      .add("--data-path", input,
           "File with one JSON object a line, all continuations of a prompt after each other. "
           "Without --scorer the lines have \"score\".")
      .none();
  flags
      .add("--out-path", output,
           "File for the lines with their scores; <data-path>-annotated.jsonl if not given.")
      .none();
  flags
      .add("--prompt-path", prompts,
           "File with the prompts, {\"prompt\": {\"text\": ..., \"toxicity\": ...}} a line: toxic "
           "and other prompts are measured apart, too.")
      .none();
  flags.add("--continuations", continuations, "Of each prompt.");
  add_scorer_flags(flags, scorer);
  add_run_flags(flags, run);
  if (!parse_flags(flags, kUsage, words)) return 0;
  std::vector<std::string> wrong;
  expect_input(input, wrong);
  expect_scorer(scorer, wrong);
  if (continuations < 1) {
    wrong.push_back(fmt::format("--continuations {} must be at least 1", continuations));
  }
  if (scorer.scorer.empty() && !output.empty()) {
    wrong.emplace_back("--out-path is for the scores of --scorer; give both or neither");
  }
  if (!wrong.empty()) throw ConfigError(wrong);
  std::string annotated = input;
  if (!scorer.scorer.empty()) {
    annotated = output.empty() ? annotated_name(input) : output;
    annotate(input, annotated, scorer, run);
  }
  const corpus::ToxicityReport report =
      corpus::measure_toxicity(annotated, prompts, continuations, run_options(run));
  print_line(
      fmt::format("{}: {} lines, {} without a score", annotated, report.lines, report.unscored));
  print_prompts("all", report.all);
  if (report.toxic) print_prompts("toxic", *report.toxic);
  if (report.nontoxic) print_prompts("nontoxic", *report.nontoxic);
  for (const auto& [name, mean] : report.means) {
    print_line(fmt::format("mean {}: {:.4f}", name, mean));
  }
  return 0;
}

int score_words(std::span<const std::string> words) {
  constexpr const char* kUsage =
      "megatron corpus score-words --words FILE\n\n"
      "A scorer for annotate-toxicity: 1 - (1 - w1)(1 - w2)... over the words of a text that the\n"
      "file knows, as often as they occur. Reads standard input, writes standard output.\n";
  std::string file;
  FlagTable flags;
  flags.group("files");
  flags
      .add("--words", file,
           "File with WORD, a tab and its weight in 0..1 a line; a third column names another "
           "attribute than toxicity.")
      .none();
  if (!parse_flags(flags, kUsage, words)) return 0;
  if (file.empty()) throw ConfigError("--words is missing; give the file of words and weights");
  const corpus::WordScorer scorer(file);
  std::string line;
  for (int64_t number = 1; next_line(std::cin, line, number, "standard input"); ++number) {
    print_line(scorer.answer(line));
    std::fflush(stdout);
  }
  return 0;
}

}  // namespace megatron::cli

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "megatron/core/file.h"
#include "megatron/settings/training_args.h"
#include "tests/support/source_path.h"

// No flag is silent: each does something, says that it does nothing, or is refused.
namespace megatron {
namespace {

using testing::HasSubstr;

// Folders and files whose reading of a field is no effect on a run: flags and their checks, other
// systems' formats, and the plan.
bool is_bystander(const std::string& path) {
  constexpr std::array kParts = {"/settings/",         "/config.h",        "/config.cpp",
                                 "/interchange/",      "/gpt/hf_",         "/gpt/megatron_",
                                 "/gpt/deepspeed_",    "/gpt/python_",     "convert_checkpoint",
                                 "checkpoint_formats", "check_conversion", "_plan."};
  return std::any_of(kParts.begin(), kParts.end(),
                     [&](const char* part) { return path.find(part) != std::string::npos; });
}

const std::string& sources_of_runs() {
  static const std::string text = [] {
    std::string all;
    for (const auto& entry :
         std::filesystem::recursive_directory_iterator(source_path("megatron"))) {
      const std::string path = entry.path().string();
      const std::string extension = entry.path().extension().string();
      const bool is_source = extension == ".h" || extension == ".cpp" || extension == ".cu";
      if (is_source && !is_bystander(path)) all += read_text(entry.path());
    }
    return all;
  }();
  return text;
}

// Does a source read a member of this name, or call a function of it?
bool is_read(const std::string& field) {
  const std::string& text = sources_of_runs();
  const auto is_word = [](char c) {
    return std::isalnum(static_cast<unsigned char>(c)) || c == '_';
  };
  for (size_t at = text.find(field); at != std::string::npos; at = text.find(field, at + 1)) {
    const char before = at == 0 ? ' ' : text[at - 1];
    const char after = at + field.size() < text.size() ? text[at + field.size()] : ' ';
    if (is_word(before) || is_word(after)) continue;
    if (before == '.' || (before == '>' && text[at - 2] == '-') || after == '(') return true;
  }
  return false;
}

// The words that give a flag another value than its default.
std::vector<std::string> example_of(const Flag& flag) {
  std::vector<std::string> words = {flag.names.front()};
  switch (flag.type) {
    case FlagType::kSwitch:
    case FlagType::kOff:
      break;
    case FlagType::kBool:
      words.emplace_back("true");
      break;
    case FlagType::kInt:
    case FlagType::kInts:
      words.emplace_back("3");
      break;
    case FlagType::kFloat:
      words.emplace_back("0.75");
      break;
    case FlagType::kText:
    case FlagType::kTexts:
      words.emplace_back("x");
      break;
    case FlagType::kChoice:
      words.push_back(ArgValue(flag.choices.front()) == flag.fallback ? flag.choices.back()
                                                                      : flag.choices.front());
      break;
  }
  return words;
}

struct Answer {
  std::string warnings;
  std::string problems;
};

// What a GPT's command line with this flag is told.
Answer answer_to(const Flag& flag) {
  std::vector<std::string> words = {"--num-layers",
                                    "2",
                                    "--hidden-size",
                                    "8",
                                    "--num-attention-heads",
                                    "2",
                                    "--seq-length",
                                    "16",
                                    "--max-position-embeddings",
                                    "16",
                                    "--micro-batch-size",
                                    "2",
                                    "--train-iters",
                                    "10",
                                    "--lr",
                                    "0.001",
                                    "--tokenizer-type",
                                    "NullTokenizer",
                                    "--vocab-size",
                                    "100",
                                    "--mock-data"};
  for (const std::string& word : example_of(flag)) words.push_back(word);
  std::vector<std::string> problems;
  const TrainingArgs args = resolved(parsed_flags(words, ModelKind::kGpt, problems), 1, problems);
  Answer answer;
  for (const std::string& problem : problems) answer.problems += problem + "\n";
  for (const std::string& problem : unavailable(args)) answer.problems += problem + "\n";
  for (const std::string& warning : args.warnings) answer.warnings += warning + "\n";
  return answer;
}

// What is wrong with a row; empty when the flag is not silent.
std::string silence_of(const Flag& flag) {
  const std::string& name = flag.names.front();
  const Answer answer = answer_to(flag);
  const bool is_warned = answer.warnings.find(name) != std::string::npos;
  const bool is_problem = answer.problems.find(name) != std::string::npos;
  switch (flag.status) {
    case FlagStatus::kIgnored:
      return is_warned ? "" : "is ignored without a warning";
    case FlagStatus::kRefused:
    case FlagStatus::kRemoved:
      return is_problem ? "" : "is to be refused, but is not";
    case FlagStatus::kUsed:
      break;
  }
  if (!flag.models.empty()) {
    const bool is_for_gpt =
        std::find(flag.models.begin(), flag.models.end(), "GPT") != flag.models.end();
    if (!is_for_gpt) return is_warned ? "" : "is for other models, and GPT is not told";
  }
  const std::string& field = flag.carrier.empty() ? flag.dest : flag.carrier;
  if (is_read(field) || is_warned || is_problem) return "";
  return "fills " + field +
         ", which no constructor reads: give it an effect, or mark its row with no_effect(), "
         "refused(), only_for() or becomes()";
}

TEST(FlagEffectsTest, NoFlagIsSilent) {
  TrainingArgs args;
  const FlagTable flags = training_flags(args);
  int used = 0;
  for (const Flag& flag : flags.rows()) {
    EXPECT_EQ(silence_of(flag), "") << flag.names.front();
    if (flag.status == FlagStatus::kUsed) used += 1;
  }
  EXPECT_GT(used, 100);
}

// The walk itself finds a flag whose field nobody reads.
TEST(FlagEffectsTest, AFieldThatNothingReadsIsFound) {
  EXPECT_FALSE(is_read("no_constructor_reads_this"));
  EXPECT_TRUE(is_read("hidden_size"));
  Flag flag;
  flag.names = {"--log-interval"};
  flag.type = FlagType::kInt;
  flag.dest = "no_constructor_reads_this";
  EXPECT_THAT(silence_of(flag), HasSubstr("which no constructor reads"));
}

TEST(FlagEffectsTest, AWarningSaysWhy) {
  TrainingArgs args;
  const FlagTable flags = training_flags(args);
  EXPECT_THAT(answer_to(*flags.find("ddp_num_buckets")).warnings,
              HasSubstr("--ddp-num-buckets has no effect: the size of buckets is given, with "
                        "--ddp-bucket-size\n"));
  EXPECT_THAT(answer_to(*flags.find("mask_prob")).warnings,
              HasSubstr("--mask-prob has no effect with GPT: it is for BERT and T5\n"));
}

}  // namespace
}  // namespace megatron

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "megatron/settings/training_args.h"

// A flag that does nothing says so, and a flag that cannot be obeyed is refused.
// tests/program/flag_effects_test.cpp shows the effects of all others.
namespace megatron {
namespace {

using testing::HasSubstr;

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
    case FlagType::kLayers:
      words.emplace_back("2");
      break;
    case FlagType::kFloat:
    case FlagType::kFloats:
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

TEST(FlagStatusTest, FlagsWithoutEffectSaySo) {
  TrainingArgs args;
  const FlagTable flags = training_flags(args);
  int checked = 0;
  for (const Flag& flag : flags.rows()) {
    const std::string& name = flag.names.front();
    const bool is_for_gpt = flag.models.empty() || std::find(flag.models.begin(), flag.models.end(),
                                                             "GPT") != flag.models.end();
    if (flag.status == FlagStatus::kUsed && is_for_gpt) continue;
    const Answer answer = answer_to(flag);
    const bool is_refused =
        flag.status == FlagStatus::kRefused || flag.status == FlagStatus::kRemoved;
    EXPECT_THAT(is_refused ? answer.problems : answer.warnings, HasSubstr(name));
    checked += 1;
  }
  EXPECT_GT(checked, 200);
}

TEST(FlagStatusTest, AWarningSaysWhy) {
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

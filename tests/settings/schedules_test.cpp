// Schedules by the flags that ask for them: tests/cases/schedules.txt.
#include <gtest/gtest.h>

#include <fstream>
#include <sstream>
#include <string>
#include <vector>

#include "megatron/optim/parameter_scheduler.h"
#include "megatron/settings/training_args.h"
#include "megatron/training/microbatch_calculator.h"
#include "tests/support/source_path.h"

namespace megatron {
namespace {

std::string flags_of(const std::string& word) {
  if (word == "RUN") return "--micro-batch-size 1 --global-batch-size 10 --train-samples 1000";
  if (word == "RATE") return "--lr 1e-3 --min-lr 1e-4 --lr-warmup-samples 100";
  return word;
}

TrainingArgs parsed(const std::string& line) {
  std::string flags =
      "--num-layers 2 --hidden-size 8 --num-attention-heads 2 --seq-length 16 "
      "--max-position-embeddings 16 --tokenizer-type NullTokenizer --vocab-size 100 --mock-data";
  std::istringstream given(line);
  for (std::string word; given >> word;) flags += " " + flags_of(word);
  std::istringstream stream(flags);
  std::vector<std::string> words;
  for (std::string word; stream >> word;) words.push_back(word);
  return parse_training_args(words, ModelKind::kGpt, 1);
}

// Numbers of the cases have seven digits.
void expect_near(double got, double want, const std::string& where) {
  EXPECT_NEAR(got, want, 1e-6 * want) << where;
}

// "SAMPLES lr RATE wd DECAY batch SIZE" or "iterations N"
void expect_row(const TrainingArgs& args, const std::string& row, const std::string& where) {
  std::istringstream stream(row);
  std::string what;
  stream >> what;
  if (what == "iterations") {
    int64_t want = 0;
    stream >> want;
    EXPECT_EQ(train_iters_of(args.training), want) << where;
    return;
  }
  const int64_t samples = std::stoll(what);
  ParameterScheduler scheduler = make_parameter_scheduler(
      args.optimizer, {.train_iters = args.training.train_iters,
                       .train_samples = args.training.train_samples,
                       .global_batch_size = args.training.global_batch_size});
  scheduler.advance(samples);
  double want = 0;
  while (stream >> what >> want) {
    if (what == "lr") {
      expect_near(scheduler.rates().lr, want, where);
    } else if (what == "wd") {
      expect_near(scheduler.rates().weight_decay, want, where);
    } else if (what == "batch") {
      EXPECT_EQ(batch_size_schedule_of(args.training).at(samples), static_cast<int64_t>(want))
          << where;
    } else {
      ADD_FAILURE() << where << ": " << what;
    }
  }
}

TEST(SchedulesTest, AreTheCases) {
  std::ifstream file(source_path("tests/cases/schedules.txt"));
  ASSERT_TRUE(file.is_open());
  TrainingArgs args;
  std::string flags;
  int rows = 0;
  for (std::string line; std::getline(file, line);) {
    if (line.empty() || line.starts_with("#")) continue;
    if (line.starts_with("$")) {
      flags = line;
      args = parsed(line.substr(1));
      continue;
    }
    expect_row(args, line, flags + ": " + line);
    rows += 1;
  }
  EXPECT_GT(rows, 60);
}

}  // namespace
}  // namespace megatron

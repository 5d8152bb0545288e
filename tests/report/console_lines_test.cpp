#include "megatron/report/console_lines.h"

#include <gmock/gmock.h>

#include "megatron/core/file.h"
#include "tests/support/source_path.h"

namespace megatron::report {
namespace {

using testing::ElementsAre;
using testing::Pair;

// "1=2.5 2=3"
std::string points_of(const RunHistory& history, std::string_view name) {
  std::string text;
  const Series* const series = history.find(name);
  if (series == nullptr) return "none";
  for (const Point& point : series->points) {
    std::string value = std::to_string(point.value);
    value.erase(value.find_last_not_of('0') + 1);
    text += (text.empty() ? "" : " ") + std::to_string(point.iteration) + "=" + value;
  }
  return text;
}

TEST(ConsoleLinesTest, ReadsAGoldenLogOfMegatronLM) {
  const std::string folder = source_path("tests/golden/megatron/gpt/");
  RunHistory history;
  read_console(history, "------------------------ arguments ------------------------\n" +
                            read_text(folder + "arguments.txt") +
                            "-------------------- end of arguments ---------------------\n" +
                            read_text(folder + "iterations.txt"));
  EXPECT_EQ(history.settings.at("seq_length"), "32");
  EXPECT_EQ(history.settings.at("lr_decay_style"), "cosine");
  const Series* const loss = history.find("lm loss");
  ASSERT_NE(loss, nullptr);
  EXPECT_EQ(loss->points.size(), 20u);
  EXPECT_EQ(history.find("grad_norm")->points.size(), 20u);
  EXPECT_EQ(history.find("learning_rate")->points.back().value, 1e-4);
  const std::vector<Progress> progress = history.progress();
  ASSERT_EQ(progress.size(), 20u);
  EXPECT_EQ(progress.back().samples, 160);
  EXPECT_NEAR(progress.back().tokens, 160 * 32, 1e-6);
}

TEST(ConsoleLinesTest, ReadsLinesBehindTheTextOfALauncherAndInSeconds) {
  RunHistory history;
  read_console(
      history,
      "[default7]: iteration        1/     100 | consumed samples:           16 | consumed "
      "tokens:        32768 | elapsed time per iteration (s): 4.50 | learning rate: "
      "1.000E-04 | global batch size:    16 | lm loss: 1.25E+01 | loss scale: 4096.0 | "
      "grad norm: nan | samples per second: 4.000 | TFLOPs: 62.10 |\n"
      " [2026-01-02 03:04:05] iteration        2/     100 | consumed samples:           32 "
      "| throughput per GPU (TFLOP/s/GPU): 63.5 | MFU: 41.5% | lm loss: 1.2E+01 |\r\n"
      " iteration        3/     100 | consumed samples:           48 | lm loss: 1.1");
  EXPECT_EQ(points_of(history, "lm loss"), "1=12.5 2=12.");
  EXPECT_EQ(points_of(history, "elapsed_ms_per_iteration"), "1=4500.");
  EXPECT_EQ(points_of(history, "consumed_train_tokens"), "1=32768.");
  EXPECT_EQ(points_of(history, "grad_norm"), "1=nan");
  EXPECT_EQ(points_of(history, "tflops_per_gpu"), "1=62.1 2=63.5");
  EXPECT_EQ(points_of(history, "mfu_percent"), "2=41.5");
  EXPECT_EQ(points_of(history, "tokens_per_second"), "none");
}

TEST(ConsoleLinesTest, ReadsEvaluations) {
  RunHistory history;
  read_console(
      history,
      " validation loss at iteration 10 | lm loss value: 6.0E+00 | lm loss PPL: 4.0E+02 | \n"
      " code loss at iteration 10 | lm loss value: 5.0E+00 | lm loss PPL: 1.0E+02 | \n"
      " validation loss at iteration 20 on validation set | lm loss value: 5.5E+00 | lm "
      "loss PPL: 2.0E+02 | \n"
      " validation loss at iteration 20 on test set | lm loss value: 5.75E+00 | lm loss "
      "PPL: 3.0E+02 | \n"
      " validation results on LAMBADA | number correct: 1.0E+01 | avg accuracy: 2.5E-01\n");
  EXPECT_EQ(points_of(history, "lm loss validation"), "10=6. 20=5.5");
  EXPECT_EQ(points_of(history, "lm loss validation ppl"), "10=400. 20=200.");
  EXPECT_EQ(points_of(history, "lm loss test"), "20=5.75");
  EXPECT_EQ(points_of(history, "lm-loss-validation/code/lm loss validation"), "10=5.");
  ASSERT_TRUE(history.results.contains("LAMBADA"));
  EXPECT_THAT(history.results["LAMBADA"],
              ElementsAre(Pair("avg accuracy", 0.25), Pair("number correct", 10)));
}

TEST(ConsoleLinesTest, ReadsMemory) {
  RunHistory history;
  read_console(history,
               "> memory plan: parameters 0.5 MiB, optimizer 1.50 GiB\n"
               "> memory plan: 1.50 GiB at the peak, forward of layer 2\n"
               "> memory plan: 2.0 MiB of host memory for batches\n"
               "[Rank 0] (after 2 iterations) memory (MB) | allocated: 1.5 | max reserved: 4.0\n");
  EXPECT_THAT(history.planned_memory,
              ElementsAre(Pair("optimizer", 1.5 * (1 << 30)), Pair("parameters", 1 << 19)));
  EXPECT_THAT(history.measured_memory,
              ElementsAre(Pair("allocated", 1.5 * (1 << 20)), Pair("max reserved", 4 << 20)));
}

TEST(ConsoleLinesTest, SkipsEverythingElse) {
  RunHistory history;
  read_console(history,
               "iteration\n iteration 5\n iteration 5/\n iteration x/ 10 | lm loss: 1 |\n"
               " iteration 9223372036854775807/ 10 | lm loss: 1 |\n"
               " iteration 5/ 10 lm loss: 1 |\n loss at \n | loss at iteration 3 | a: 1 |\n"
               "> memory plan: , \n results on \n\xff\xfe\n");
  EXPECT_TRUE(history.is_empty());
  EXPECT_TRUE(history.planned_memory.empty());
}

}  // namespace
}  // namespace megatron::report

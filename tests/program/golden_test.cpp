#include <cmath>

#include "tests/optim/golden_log.h"
#include "tests/program/program_test.h"

// Our runs against the logs of Megatron-LM. Initial weights are other draws of the same
// distribution, so losses agree roughly and everything that does not depend on weights exactly.
namespace megatron::program {
namespace {

class GoldenTest : public ProgramTest {};

TEST_F(GoldenTest, Fp32RunFollowsTheLog) {
  const std::vector<LoggedIteration> want = logged_iterations("gpt");
  const Outcome outcome = train(golden_flags().with("--repeat-last-evaluation"));
  const std::vector<IterationText> got = iterations_of(outcome.out);
  ASSERT_EQ(got.size(), want.size());
  for (size_t i = 0; i < want.size(); ++i) {
    for (const char* name : {"learning rate", "consumed samples", "global batch size", "loss scale",
                             "number of skipped iterations", "number of nan iterations"}) {
      EXPECT_EQ(got[i].text(name), want[i].text(name)) << name << " of iteration " << i + 1;
    }
    EXPECT_NEAR(got[i].number("lm loss"), want[i].number("lm loss"), 0.1) << "iteration " << i + 1;
  }
  const std::map<std::string, double> losses = validations_of(outcome.out);
  EXPECT_NEAR(losses.at("iteration 10"), 6.026551, 0.1);
  EXPECT_NEAR(losses.at("iteration 20"), 5.954006, 0.1);
  EXPECT_NEAR(losses.at("iteration 20 on validation set"), 5.950473, 0.1);
  EXPECT_NEAR(losses.at("iteration 20 on test set"), 5.947258, 0.1);
}

TEST_F(GoldenTest, LinesHaveTheFieldsAndWidthsOfTheLog) {
  const auto shape_of = [](std::string line) {  // digits are 0, the time is cut out
    const size_t at = line.find(" elapsed time");
    if (at != std::string::npos) line.erase(at, line.find('|', at) + 1 - at);
    for (char& c : line) {
      if (c >= '0' && c <= '9') c = '0';
    }
    return line;
  };
  const std::vector<LoggedIteration> want = logged_iterations("gpt");
  const std::vector<IterationText> got = iterations_of(train(golden_flags()).out);
  ASSERT_EQ(got.size(), want.size());
  for (size_t i = 0; i < want.size(); ++i) {
    EXPECT_EQ(shape_of(got[i].line), shape_of(want[i].line));
  }
}

// A skipped iteration halves the scale (the second one on: hysteresis is 2 and never refilled
// before growth), consumes its samples, prints no loss, and leaves the learning rate.
TEST_F(GoldenTest, Fp16SkipsIterationsByTheRule) {
  // Two overflows are tolerated before the first halving; as in the log the first line of a run
  // already says 2^32.
  const std::vector<LoggedIteration> log = logged_iterations("fp16");
  const std::vector<IterationText> got =
      iterations_of(train(golden_flags().with("--fp16").with("--train-iters", "20")).out);
  ASSERT_EQ(got.size(), log.size());
  const std::vector<LoggedIteration> rates = logged_iterations("gpt");

  size_t skipped = 0;
  while (skipped < got.size() && !got[skipped].has("lm loss")) ++skipped;
  ASSERT_GT(skipped, 5u);
  ASSERT_LT(skipped, got.size());
  for (size_t i = 0; i < got.size(); ++i) {
    EXPECT_EQ(got[i].text("consumed samples"), log[i].text("consumed samples"));
    const bool is_skipped = i < skipped;
    EXPECT_EQ(got[i].text("number of skipped iterations"), is_skipped ? "1" : "0");
    EXPECT_EQ(got[i].has("lm loss"), !is_skipped);
    EXPECT_EQ(got[i].has("grad norm"), !is_skipped);
    if (is_skipped) {
      EXPECT_EQ(got[i].number("loss scale"), std::ldexp(1.0, 32 - static_cast<int>(i)));
      EXPECT_EQ(got[i].text("learning rate"), "0.000E+00");
    } else {
      EXPECT_EQ(got[i].text("loss scale"), got[skipped - 1].text("loss scale"));
      EXPECT_EQ(got[i].text("learning rate"), rates[i - skipped].text("learning rate"));
    }
  }
}

// bf16 keeps 8 bits: losses near those of fp32.
TEST_F(GoldenTest, Bf16FollowsFp32) {
  const std::vector<IterationText> want = iterations_of(train(golden_flags()).out);
  const std::vector<IterationText> got = iterations_of(train(golden_flags().with("--bf16")).out);
  ASSERT_EQ(got.size(), want.size());
  for (size_t i = 0; i < want.size(); ++i) {
    EXPECT_NEAR(got[i].number("lm loss"), want[i].number("lm loss"), 0.02);
  }
}

}  // namespace
}  // namespace megatron::program

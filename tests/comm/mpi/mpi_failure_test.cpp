#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <chrono>
#include <cstdio>
#include <string>

namespace megatron::comm {
namespace {

using testing::HasSubstr;

struct Outcome {
  int status = 0;
  std::string text;
  double seconds = 0;
};

// Three processes, of which the second goes wrong.
Outcome run_job(const std::string& how) {
  const auto begin = std::chrono::steady_clock::now();
  const std::string command = MG_MPI_JOB " " + how + " 2>&1";
  std::FILE* const pipe = ::popen(command.c_str(), "r");
  Outcome outcome;
  std::array<char, 4096> buffer;
  while (const size_t count = std::fread(buffer.data(), 1, buffer.size(), pipe)) {
    outcome.text.append(buffer.data(), count);
  }
  outcome.status = ::pclose(pipe);
  outcome.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  return outcome;
}

TEST(MpiFailureTest, AJobWithoutFailureEndsWell) {
  const Outcome outcome = run_job("well");
  EXPECT_EQ(outcome.status, 0) << outcome.text;
}

TEST(MpiFailureTest, AnExceptionEndsAllAndIsNamed) {
  const Outcome outcome = run_job("throw");
  EXPECT_NE(outcome.status, 0);
  EXPECT_LT(outcome.seconds, 10);
  EXPECT_THAT(outcome.text, HasSubstr("process 1: the corpus is empty"));
  EXPECT_THAT(outcome.text, HasSubstr("was released because rank 1 of the world failed: the corpus "
                                      "is empty"));
}

TEST(MpiFailureTest, AKilledProcessEndsAll) {
  const Outcome outcome = run_job("kill");
  EXPECT_NE(outcome.status, 0);
  EXPECT_LT(outcome.seconds, 10);
  EXPECT_THAT(outcome.text, HasSubstr("signal 9"));
}

TEST(MpiFailureTest, AStoppedProcessIsNamed) {
  const Outcome outcome = run_job("stop");
  EXPECT_NE(outcome.status, 0);
  EXPECT_LT(outcome.seconds, 20);
  EXPECT_THAT(outcome.text, HasSubstr("waited 2 s for rank 1 (rank 1 of the world)"));
  EXPECT_THAT(outcome.text, HasSubstr("the last calls of rank"));
}

TEST(MpiFailureTest, AProcessThatLeavesEndsAll) {
  const Outcome outcome = run_job("exit");
  EXPECT_NE(outcome.status, 0);
  EXPECT_LT(outcome.seconds, 20);
}

TEST(MpiFailureTest, DifferentCallsAreNamed) {
  const Outcome outcome = run_job("mismatch");
  EXPECT_NE(outcome.status, 0);
  EXPECT_THAT(outcome.text, HasSubstr("members made different calls"));
  EXPECT_THAT(outcome.text, HasSubstr("called barrier"));
}

}  // namespace
}  // namespace megatron::comm

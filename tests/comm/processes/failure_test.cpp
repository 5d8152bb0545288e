#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <chrono>
#include <cstdio>
#include <string>

#include "tests/support/sanitizers.h"

namespace megatron::comm {
namespace {

using testing::HasSubstr;

struct Outcome {
  int status = 0;
  std::string text;
  double seconds = 0;
};

// How three processes are started, and whether they communicate in shared memory or by messages.
struct Launch {
  const char* name;
  const char* command;
  const char* memory;
};
constexpr Launch kLaunches[] = {{"mpirun", MG_MPI_JOB, ""},
                                {"variables", MG_TCP_JOB, ""},
                                {"mpirunInSharedMemory", MG_MPI_JOB, " shared"},
                                {"variablesInSharedMemory", MG_TCP_JOB, " shared"}};

class ProcessFailureTest : public testing::TestWithParam<Launch> {};
INSTANTIATE_TEST_SUITE_P(Launchers, ProcessFailureTest, testing::ValuesIn(kLaunches),
                         [](const auto& launch) { return launch.param.name; });

// Three processes, of which the second goes wrong.
Outcome run_job(const std::string& how) {
  const auto begin = std::chrono::steady_clock::now();
  const Launch& launch = ProcessFailureTest::GetParam();
  const std::string command = std::string(launch.command) + " " + how + launch.memory + " 2>&1";
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

TEST_P(ProcessFailureTest, AJobWithoutFailureEndsWell) {
  const Outcome outcome = run_job("well");
  EXPECT_EQ(outcome.status, 0) << outcome.text;
}

TEST_P(ProcessFailureTest, AnExceptionEndsAllAndIsNamed) {
  const Outcome outcome = run_job("throw");
  EXPECT_NE(outcome.status, 0);
  EXPECT_LT(outcome.seconds, 20);
  EXPECT_THAT(outcome.text, HasSubstr("process 1: the corpus is empty"));
  EXPECT_THAT(outcome.text, HasSubstr("was released because rank 1 of the world failed: the corpus "
                                      "is empty"));
}

TEST_P(ProcessFailureTest, AKilledProcessEndsAll) {
  const Outcome outcome = run_job("kill");
  EXPECT_NE(outcome.status, 0);
  EXPECT_LT(outcome.seconds, 20);
  EXPECT_THAT(outcome.text,
              testing::AnyOf(HasSubstr("signal 9"),
                             HasSubstr("rank 1 of the world failed: its connection is gone")));
}

TEST_P(ProcessFailureTest, AStoppedProcessIsNamed) {
  const Outcome outcome = run_job("stop");
  EXPECT_NE(outcome.status, 0);
  EXPECT_LT(outcome.seconds, 20);
  EXPECT_THAT(outcome.text, HasSubstr("waited 2 s for rank 1 (rank 1 of the world)"));
  EXPECT_THAT(outcome.text, HasSubstr("the last calls of rank"));
}

// Over TCP the hanging process is asked for its stack, which its other thread prints.
TEST_P(ProcessFailureTest, AHangingProcessShowsItsStack) {
  const Outcome outcome = run_job("hang");
  EXPECT_NE(outcome.status, 0);
  EXPECT_LT(outcome.seconds, 20);
  EXPECT_THAT(outcome.text, HasSubstr("the calls of all threads of rank "));
  EXPECT_THAT(outcome.text, HasSubstr("megatron::comm::"));
  if (std::string(GetParam().command) != MG_TCP_JOB) return;
  EXPECT_THAT(outcome.text, HasSubstr("the calls of all threads of rank 1, innermost first:"));
  if (MG_THREAD_SANITIZER) return;  // it keeps signals back until a thread makes a system call
  EXPECT_THAT(outcome.text, HasSubstr("  megatron::comm::compute_without_end()\n"));
}

TEST_P(ProcessFailureTest, AProcessThatLeavesEndsAll) {
  const Outcome outcome = run_job("exit");
  EXPECT_NE(outcome.status, 0);
  EXPECT_LT(outcome.seconds, 20);
}

TEST_P(ProcessFailureTest, DifferentCallsAreNamed) {
  const Outcome outcome = run_job("mismatch");
  EXPECT_NE(outcome.status, 0);
  EXPECT_THAT(outcome.text, HasSubstr("members made different calls"));
  EXPECT_THAT(outcome.text, HasSubstr("called barrier"));
}

}  // namespace
}  // namespace megatron::comm

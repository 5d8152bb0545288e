#include "megatron/launch/job.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <string>

#include "megatron/core/exit_code.h"
#include "megatron/core/log.h"
#include "megatron/launch/supervisor.h"
#include "tests/support/captured_output.h"

namespace megatron::launch {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

JobProcess shell(const std::string& script) {
  return {.name = "rank 0", .speaker = {}, .words = {"sh", "-c", script}, .environment = {}};
}

// Runs the job in a process whose standard error is this descriptor; its exit code.
int exit_code_with_errors_to(int descriptor, const std::string& script) {
  const pid_t child = ::fork();
  if (child == 0) {
    ::dup2(descriptor, STDERR_FILENO);
    const JobOutcome outcome = run_job({shell(script)});
    warn("the launcher itself has something to say");
    print_error("and an error");
    ::_exit(outcome.exit_code);
  }
  int status = 0;
  ::waitpid(child, &status, 0);
  return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

constexpr const char* kTalk =
    "for i in 1 2 3; do echo warning: $i; echo error: $i; done >&2; exit ";

TEST(JobTest, AFullDiskUnderStandardErrorEndsNothing) {
  const int full = ::open("/dev/full", O_WRONLY | O_CLOEXEC);
  ASSERT_GE(full, 0);
  EXPECT_EQ(exit_code_with_errors_to(full, kTalk + std::string("0")), 0);
  EXPECT_EQ(exit_code_with_errors_to(full, kTalk + std::string("5")), 5);
  ::close(full);
}

TEST(JobTest, AClosedStandardErrorEndsNothing) {
  std::array<int, 2> ends{};
  ASSERT_EQ(::pipe2(ends.data(), O_CLOEXEC), 0);
  ::close(ends[0]);
  // The ranks' own errors come to launch, and its signals are as they were.
  const std::string script = kTalk + std::string("0");
  EXPECT_EQ(exit_code_with_errors_to(ends[1], script), 0);
  ::close(ends[1]);
}

TEST(JobTest, ALineWithoutAnEndIsPassedOnInPieces) {
  CapturedStderr captured_err;
  EXPECT_EQ(run_job({shell("head -c 1000000 /dev/zero | tr '\\0' x >&2")}).exit_code, 0);
  const std::string text = captured_err.text();
  EXPECT_EQ(std::count(text.begin(), text.end(), 'x'), 1'000'000);
  EXPECT_GE(std::count(text.begin(), text.end(), '\n'), 10);
}

TEST(JobTest, EndlessErrorsAreBounded) {
  CapturedStderr captured_err;
  EXPECT_EQ(run_job({shell("yes 'error: again' | head -n 100000 | nl | "
                           "sed 's/.*error/error/;s/$/ x/' >&2; exit 2")})
                .exit_code,
            kExitInput);
  EXPECT_LT(captured_err.text().size(), 100'000u);
}

TEST(SupervisorTest, ARestartLoadsWhatWasSaved) {
  EXPECT_THAT(resuming({"--load", "x", "--lr", "1", "--finetune", "--ckpt_step=3"}, "saved"),
              ElementsAre("--lr", "1", "--load", "saved"));
}

TEST(SupervisorTest, TheProgramIsAFile) { EXPECT_THAT(own_program(), HasSubstr("launch_test")); }

}  // namespace
}  // namespace megatron::launch

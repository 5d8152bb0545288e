#include <filesystem>

#include "megatron/core/file.h"
#include "tests/program/program_test.h"

// Standard streams that cannot be written.
namespace megatron::program {
namespace {

using testing::HasSubstr;

// Runs a command whose standard streams the shell redirects as `redirection` says.
Outcome run_with(const std::string& redirection, const std::string& command, const Words& words) {
  return run(command, words, {.launcher = {"sh", "-c", "exec \"$@\" " + redirection, "sh"}});
}

class OutputTest : public ProgramTest {
 protected:
  Flags short_run() const {
    return golden_flags().with("--train-iters", "2").with("--eval-iters", "0");
  }
};

TEST_F(OutputTest, AFullStandardOutputIsAnErrorOfEveryCommand) {
  const Words plan = {"--workload", "tiny", "--device", "cpu"};
  for (const auto& [command, words] : std::vector<std::pair<std::string, Words>>{
           {"--help", {}}, {"pretrain-gpt", {"--help"}}, {"--version", {}}, {"plan", plan}}) {
    for (const char* redirection : {">/dev/full", ">&-"}) {
      const Outcome outcome = run_with(redirection, command, words);
      EXPECT_EQ(outcome.exit_code, 1) << command << redirection << outcome.err;
      EXPECT_THAT(outcome.err, HasSubstr("error: standard output cannot be written")) << command;
    }
  }
}

// The log is lost, the training is not.
TEST_F(OutputTest, TrainingGoesOnWithoutItsStreams) {
  const Flags flags = short_run().with("--save-interval", "2");
  train(flags.with("--save", path("want").string()));
  const Outcome outcome = run_with(">/dev/full 2>&-", "pretrain-gpt",
                                   flags.with("--save", path("got").string()).words());
  EXPECT_EQ(outcome.exit_code, 1);
  expect_identical(read_saved_run(path("got") / "iter_0000002"),
                   read_saved_run(path("want") / "iter_0000002"));
}

TEST_F(OutputTest, AFullStandardErrorEndsNothing) {
  const Outcome outcome =
      run_with("2>/dev/full", "pretrain-gpt", short_run().with("--ddp-num-buckets", "3").words());
  EXPECT_EQ(outcome.exit_code, 0);
  EXPECT_EQ(iterations_of(outcome.out).size(), 2u);
}

}  // namespace
}  // namespace megatron::program

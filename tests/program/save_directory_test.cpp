#include <signal.h>

#include "megatron/core/file.h"
#include "tests/program/program_test.h"

// A directory of --save belongs to one run.
namespace megatron::program {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;

class SaveDirectoryTest : public ProgramTest {
 protected:
  Flags saving() const {
    return golden_flags()
        .with("--train-iters", "10")
        .with("--eval-iters", "0")
        .with("--save", path("save").string())
        .with("--save-interval", "5");
  }
  std::string tracker() const {
    return read_text(path("save") / "latest_checkpointed_iteration.txt");
  }
};

TEST_F(SaveDirectoryTest, ANewRunDoesNotReplaceCheckpointsOfAnother) {
  train(saving());
  const Outcome refused = run("pretrain-gpt", saving().with("--exit-interval", "5").words());
  EXPECT_EQ(refused.exit_code, 2);
  EXPECT_THAT(errors_of(refused),
              ElementsAre(AllOf(HasSubstr("--save " + path("save").string()),
                                HasSubstr("up to iteration 10"), HasSubstr("--load"),
                                HasSubstr("--overwrite-checkpoints"))));
  EXPECT_EQ(tracker(), "10");
  // --finetune starts at 0, too.
  EXPECT_EQ(
      run("pretrain-gpt", saving().with("--load", path("save").string()).with("--finetune").words())
          .exit_code,
      2);
  // Told to, it may; and it deletes nothing that it has not written.
  train(saving()
            .with("--exit-interval", "5")
            .with("--keep-last", "1")
            .with("--overwrite-checkpoints"));
  EXPECT_EQ(tracker(), "5");
  EXPECT_TRUE(std::filesystem::exists(iteration_in(path("save"), 10)));
  // The run itself goes on there.
  train(saving().with("--load", path("save").string()).with("--exit-interval", "10"));
  EXPECT_EQ(tracker(), "10");
}

int count_of(std::string_view text, const std::string& in) {
  int count = 0;
  for (size_t at = in.find(text); at != std::string::npos; at = in.find(text, at + 1)) ++count;
  return count;
}

// Also if the run ends, for any reason, at an iteration at which it saves and evaluates anyway.
TEST_F(SaveDirectoryTest, EachIterationIsSavedAndEvaluatedOnce) {
  const Flags both = saving().with("--eval-iters", "1").with("--eval-interval", "5");
  for (const Flags& flags : {both, both.with("--exit-interval", "10")}) {
    const Outcome outcome = train(flags.with("--overwrite-checkpoints"));
    EXPECT_EQ(count_of("saving checkpoint at iteration", outcome.out), 2) << outcome.out;
    EXPECT_EQ(count_of(" validation loss at iteration", outcome.out) -
                  count_of("on test set", outcome.out),
              2)
        << outcome.out;
  }
  // As in Megatron-LM, the last evaluation is repeated on the next batches.
  const Outcome repeated =
      train(both.with("--repeat-last-evaluation").with("--overwrite-checkpoints"));
  EXPECT_EQ(validations_of(repeated.out).count("iteration 10"), 1u);
  EXPECT_EQ(validations_of(repeated.out).count("iteration 10 on validation set"), 1u);
}

TEST_F(SaveDirectoryTest, ASecondRunAtTheSameTimeIsRefused) {
  Running first("pretrain-gpt", saving().with("--train-iters", "100000").words());
  ASSERT_TRUE(first.wait_for(" iteration        1/"));
  const Outcome second = run("pretrain-gpt", saving().words());
  EXPECT_EQ(second.exit_code, 2);
  EXPECT_THAT(errors_of(second),
              ElementsAre(AllOf(HasSubstr("another run saves there"),
                                HasSubstr("process " + std::to_string(first.pid())))));
  ASSERT_TRUE(first.wait_for("saving checkpoint at iteration      10"));
  first.send(SIGKILL);
  first.finish();
  // No lock of a killed run is left; its checkpoints are.
  const Outcome resumed =
      train(saving().with("--load", path("save").string()).with("--exit-interval", "5"));
  EXPECT_THAT(resumed.out, HasSubstr("successfully loaded checkpoint from " +
                                     path("save").string() + " at iteration"));
}

}  // namespace
}  // namespace megatron::program

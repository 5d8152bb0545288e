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

// Also if the last iteration is one at which the run saves anyway.
TEST_F(SaveDirectoryTest, EachIterationIsSavedOnce) {
  const Outcome outcome = train(saving().with("--eval-iters", "1").with("--eval-interval", "5"));
  int saves = 0;
  constexpr std::string_view kSaving = "saving checkpoint at iteration";
  for (size_t at = outcome.out.find(kSaving); at != std::string::npos;
       at = outcome.out.find(kSaving, at + 1)) {
    ++saves;
  }
  EXPECT_EQ(saves, 2) << outcome.out;
  EXPECT_EQ(tracker(), "10");
  // As in Megatron-LM, the last evaluation is repeated on the next batches.
  EXPECT_EQ(validations_of(outcome.out).count("iteration 10"), 1u);
  EXPECT_EQ(validations_of(outcome.out).count("iteration 10 on validation set"), 1u);
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

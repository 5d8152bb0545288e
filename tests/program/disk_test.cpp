#include <sys/mount.h>

#include <fstream>
#include <sstream>

#include "tests/program/program_test.h"

// Failed writes give an error message and never destroy an existing checkpoint.
namespace megatron::program {
namespace {

namespace fs = std::filesystem;
using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::StartsWith;

class DiskTest : public ProgramTest {
 protected:
  Flags saving(const fs::path& save) const {
    return golden_flags()
        .with("--eval-iters", "0")
        .with("--save", save.string())
        .with("--save-interval", "5");
  }
  // The checkpoint of iteration 5 is there and loads; nothing but it, the tracker and the tokenizer
  // is.
  void expect_only_iteration_5(const fs::path& save) const {
    std::vector<std::string> names;
    for (const auto& entry : fs::directory_iterator(save)) {
      names.push_back(entry.path().filename().string());
    }
    EXPECT_THAT(names, testing::UnorderedElementsAre(
                           "iter_0000005", "latest_checkpointed_iteration.txt", "tokenizer"));
    const Outcome outcome = train(saving(save)
                                      .without("--save")
                                      .without("--save-interval")
                                      .with("--load", save.string())
                                      .with("--exit-interval", "6"));
    EXPECT_EQ(iterations_of(outcome.out).size(), 1u);
  }
};

TEST_F(DiskTest, FileSizeLimitOnSave) {
  const fs::path save = path("save");
  train(saving(save).with("--exit-interval", "5"));
  const Outcome outcome = run("pretrain-gpt", saving(save).with("--load", save.string()).words(),
                              {.max_file_bytes = 100'000});
  EXPECT_EQ(outcome.exit_code, 2);
  EXPECT_THAT(errors_of(outcome),
              ElementsAre(AllOf(HasSubstr(save.string()), HasSubstr("File too large"))));
  expect_only_iteration_5(save);
}

TEST_F(DiskTest, FullDiskOnSave) {
  const fs::path disk = path("disk");
  fs::create_directory(disk);
  if (::mount("tmpfs", disk.c_str(), "tmpfs", 0, "size=1500k") != 0) {
    GTEST_SKIP() << "mounting a small disk needs root: not run";
  }
  const fs::path save = disk / "save";
  train(saving(save).with("--exit-interval", "5"));
  const Outcome outcome = run("pretrain-gpt", saving(save).with("--load", save.string()).words());
  EXPECT_EQ(outcome.exit_code, 2);
  EXPECT_THAT(errors_of(outcome),
              ElementsAre(AllOf(HasSubstr(save.string()), HasSubstr("No space left"),
                                HasSubstr("free some space"))));
  expect_only_iteration_5(save);
  EXPECT_EQ(::umount(disk.c_str()), 0);
}

TEST_F(DiskTest, UnwritableDestinations) {
  std::ofstream(path("file")) << "not a directory";
  const fs::path bad = path("file") / "below";
  const Outcome outcome =
      run("pretrain-gpt",
          golden_flags().with("--save", bad.string()).with("--save-interval", "5").words());
  EXPECT_EQ(outcome.exit_code, 2);
  EXPECT_EQ(iterations_of(outcome.out).size(), 0u) << "it is found out too late";
  EXPECT_THAT(errors_of(outcome), ElementsAre(AllOf(HasSubstr(bad.string()), HasSubstr("--save"))));
}

// One warning names the flag, the file, the reason and the remedy; the run trains on.
TEST_F(DiskTest, UnwritableTrackersAreWarnings) {
  std::ofstream(path("file")) << "not a directory";
  const std::string bad = (path("file") / "below").string();
  const Outcome outcome = train(golden_flags()
                                    .with("--tensorboard-dir", bad)
                                    .with("--log-timers-to-tensorboard")
                                    .with("--metrics-jsonl", bad)
                                    .with("--csv-dir", bad)
                                    .with("--wandb-project", "p")
                                    .with("--wandb-exp-name", "n")
                                    .with("--wandb-save-dir", bad));
  EXPECT_EQ(iterations_of(outcome.out).size(), 20u);
  std::istringstream lines(outcome.err);
  std::vector<std::string> warnings;
  for (std::string line; std::getline(lines, line);) {
    if (line.find(bad) != std::string::npos) warnings.push_back(line);
  }
  const auto names = [&](const char* flag) {
    return AllOf(StartsWith(std::string("warning: ") + flag + " " + bad), HasSubstr("cannot "),
                 HasSubstr("choose a place in which this user may write"),
                 HasSubstr("the run continues without this tracker"));
  };
  EXPECT_THAT(warnings,
              testing::UnorderedElementsAre(names("--tensorboard-dir"), names("--metrics-jsonl"),
                                            names("--csv-dir"), names("--wandb-save-dir")));
}

// An index cache is a convenience: without it the run goes on.
TEST_F(DiskTest, UnwritableCacheIsAWarning) {
  std::ofstream(path("file")) << "not a directory";
  const Outcome outcome =
      train(golden_flags().with("--data-cache-path", (path("file") / "below").string()));
  EXPECT_THAT(outcome.err, AllOf(HasSubstr("warning: "), HasSubstr("--data-cache-path")));
  EXPECT_EQ(iterations_of(outcome.out).size(), 20u);
}

}  // namespace
}  // namespace megatron::program

#include <sys/mount.h>

#include <fstream>

#include "tests/program/program_test.h"

// What cannot be written costs the message, never a checkpoint that was there.
namespace megatron::program {
namespace {

namespace fs = std::filesystem;
using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;

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
  for (const char* flag : {"--save", "--tensorboard-dir", "--metrics-jsonl", "--csv-dir"}) {
    const Outcome outcome =
        run("pretrain-gpt",
            golden_flags().with(flag, bad.string()).with("--save-interval", "5").words());
    EXPECT_EQ(outcome.exit_code, 2);
    EXPECT_EQ(iterations_of(outcome.out).size(), 0u) << flag << " is found out too late";
    EXPECT_THAT(errors_of(outcome), ElementsAre(AllOf(HasSubstr(bad.string()), HasSubstr(flag))));
  }
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

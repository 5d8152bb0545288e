#include "megatron/checkpoint/directory.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <set>
#include <string>

#include "megatron/checkpoint/save.h"
#include "megatron/core/error.h"
#include "megatron/core/file.h"
#include "tests/checkpoint/sample_state.h"
#include "tests/support/temporary_directory.h"

namespace megatron {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

class CheckpointDirectoryTest : public testing::Test {
 protected:
  void save(int64_t iteration, const SaveOptions& options = {}) {
    save_checkpoint(path(), sample_state(iteration, 1), options);
  }
  void track(const std::string& text) { std::ofstream(path() / kTrackerFile) << text; }
  std::set<std::string> names() const {
    std::set<std::string> found;
    for (const auto& entry : std::filesystem::directory_iterator(path())) {
      found.insert(entry.path().filename().string());
    }
    return found;
  }
  const std::filesystem::path& path() const { return directory_.path(); }

  TemporaryDirectory directory_;
};

TEST_F(CheckpointDirectoryTest, FindsTheLatestOrTheOneAskedFor) {
  EXPECT_EQ(find_checkpoint(path()), std::nullopt);
  EXPECT_EQ(find_checkpoint(path() / "absent"), std::nullopt);
  EXPECT_EQ(latest_iteration(path()), std::nullopt);
  save(10);
  save(20);
  EXPECT_EQ(read_text(path() / kTrackerFile), "20");
  EXPECT_EQ(latest_iteration(path()), 20);
  EXPECT_THAT(iterations_in(path()), ElementsAre(10, 20));
  EXPECT_EQ(find_checkpoint(path()), path() / "iter_0000020");
  EXPECT_EQ(find_checkpoint(path(), 10), path() / "iter_0000010");
  EXPECT_EQ(find_checkpoint(path() / "iter_0000010"), path() / "iter_0000010");
  EXPECT_THAT(message_of<FormatError>([&] { find_checkpoint(path(), 15); }),
              HasSubstr("--ckpt-step names iteration 15, which is not a complete checkpoint; there "
                        "are iterations [10, 20]"));
  track(" 10\n");
  EXPECT_EQ(find_checkpoint(path()), path() / "iter_0000010");
}

TEST_F(CheckpointDirectoryTest, ExplainsABrokenTracker) {
  save(10);
  track("30");
  EXPECT_THAT(message_of<FormatError>([&] { find_checkpoint(path()); }),
              HasSubstr("names iteration 30"));
  for (const char* text : {"", "ten", "1e3", "-5", "99999999999999999999", "10 20"}) {
    track(text);
    EXPECT_THAT(message_of<FormatError>([&] { find_checkpoint(path()); }),
                HasSubstr("expected the number of an iteration; write one of [10]"));
  }
}

// A first save may be stopped between the checkpoint and its tracker file.
TEST_F(CheckpointDirectoryTest, WithoutATrackerTheNewestCompleteOneIsTaken) {
  save(10);
  save(20);
  std::filesystem::remove(path() / kTrackerFile);
  std::filesystem::create_directories(path() / "iter_0000030");  // holds nothing
  testing::internal::CaptureStderr();
  EXPECT_EQ(find_checkpoint(path()), path() / "iter_0000020");
  EXPECT_THAT(testing::internal::GetCapturedStderr(),
              HasSubstr("has no latest_checkpointed_iteration.txt, as if its first save was "
                        "interrupted; the newest complete checkpoint is taken, that of iteration "
                        "20\n"));
  EXPECT_EQ(latest_iteration(path()), 20);
  EXPECT_EQ(find_checkpoint(path(), 10), path() / "iter_0000010");
  std::filesystem::resize_file(path() / "iter_0000020/weights-00000-of-00001.safetensors", 100);
  EXPECT_EQ(find_checkpoint(path()), path() / "iter_0000010");
  std::ofstream(path() / "iter_0000010/manifest.json") << "{}";
  EXPECT_EQ(latest_iteration(path()), std::nullopt);
}

TEST_F(CheckpointDirectoryTest, NoCompleteOneIsNoReasonToStartFromNothing) {
  save(10);
  save(20);
  std::filesystem::remove(path() / kTrackerFile);
  for (const char* name : {"iter_0000010", "iter_0000020"}) {
    std::filesystem::remove(path() / name / "args.json");
  }
  EXPECT_THAT(message_of<FormatError>([&] { find_checkpoint(path()); }),
              HasSubstr("has no latest_checkpointed_iteration.txt, but checkpoints of iterations "
                        "[10, 20]; choose one with --ckpt-step 20"));
  std::filesystem::remove_all(path() / "iter_0000010");
  std::filesystem::remove_all(path() / "iter_0000020");
  EXPECT_EQ(find_checkpoint(path()), std::nullopt);
}

// Nothing in another system's checkpoint tells whether it is complete; but its name appears last.
TEST_F(CheckpointDirectoryTest, TheNextTrackerNamesAFirstCheckpoint) {
  const auto make = [&](const std::string& folder) {
    std::filesystem::create_directories(path() / folder / "mp_rank_00");
  };
  std::ofstream(path() / kNextTrackerFile) << "5";
  EXPECT_EQ(find_checkpoint(path()), std::nullopt);
  make("iter_0000004");
  EXPECT_THAT(message_of<FormatError>([&] { find_checkpoint(path()); }), HasSubstr("[4]"));
  make("iter_0000005");
  EXPECT_EQ(find_checkpoint(path()), path() / "iter_0000005");
  EXPECT_EQ(latest_iteration(path()), 5);
  remove_leftovers(path());
  EXPECT_EQ(find_checkpoint(path()), path() / "iter_0000005");
  std::ofstream(path() / kNextTrackerFile) << kReleaseName;
  make(kReleaseName);
  EXPECT_EQ(find_checkpoint(path()), path() / kReleaseName);
  track("4");
  EXPECT_EQ(find_checkpoint(path()), path() / "iter_0000004");
  remove_leftovers(path());
  EXPECT_FALSE(std::filesystem::exists(path() / kNextTrackerFile));
}

// A file system that cannot exchange names has a moment without a name.
TEST_F(CheckpointDirectoryTest, AReplacedCheckpointIsPutBack) {
  save(10);
  save(20);
  const auto stop_between_two_renames = [&] {
    std::filesystem::rename(path() / "iter_0000020", path() / "iter_0000020.tmp-7-replaced");
    std::filesystem::create_directories(path() / "iter_0000020.tmp-7");
  };
  stop_between_two_renames();
  EXPECT_EQ(find_checkpoint(path()), path() / "iter_0000020");
  EXPECT_TRUE(std::filesystem::exists(path() / "iter_0000020"));
  remove_leftovers(path());
  stop_between_two_renames();
  remove_leftovers(path());
  EXPECT_EQ(find_checkpoint(path()), path() / "iter_0000020");
  stop_between_two_renames();
  save(30);  // leaves it
  save(20);
  EXPECT_THAT(names(), testing::UnorderedElementsAre("iter_0000010", "iter_0000020", "iter_0000030",
                                                     kTrackerFile));
}

TEST_F(CheckpointDirectoryTest, KnowsOtherFormats) {
  const auto make = [&](const std::string& file) {
    std::filesystem::create_directories((path() / file).parent_path());
    std::ofstream(path() / file) << "x";
  };
  make("latest");
  EXPECT_EQ(find_checkpoint(path()), std::nullopt);
  make("iter_0000005/mp_rank_00/model_optim_rng.pt");
  make("release/mp_rank_00_000/model_optim_rng.pt");
  make("global_step7/layer_01-model_00-model_states.pt");
  make("iter_0000008/config.json");
  make("iter_0000009/.metadata");
  EXPECT_EQ(format_of(path()), std::nullopt);
  EXPECT_EQ(format_of(path() / "iter_0000005"), CheckpointFormat::kMegatron);
  EXPECT_EQ(format_of(path() / "global_step7"), CheckpointFormat::kDeepSpeed);
  EXPECT_EQ(format_of(path() / "iter_0000008"), CheckpointFormat::kHuggingFace);
  EXPECT_EQ(format_of(path() / "iter_0000009"), CheckpointFormat::kMegatron);
  std::ofstream(path() / "latest") << "global_step7";
  EXPECT_EQ(find_checkpoint(path()), path() / "global_step7");
  EXPECT_EQ(find_checkpoint(path(), 7), path() / "global_step7");
  std::filesystem::remove_all(path() / "iter_0000009");
  std::ofstream(path() / "latest") << "../elsewhere";
  EXPECT_THAT(message_of<FormatError>([&] { find_checkpoint(path()); }),
              HasSubstr("checkpoints of iterations [5, 8]; choose one with --ckpt-step 8"));
  track("5");
  EXPECT_EQ(find_checkpoint(path()), path() / "iter_0000005");
  EXPECT_EQ(find_checkpoint(path() / "iter_0000005"), path() / "iter_0000005");
  EXPECT_EQ(find_checkpoint(path(), 8), path() / "iter_0000008");
  track("release");
  EXPECT_EQ(find_checkpoint(path()), path() / "release");
  EXPECT_EQ(latest_iteration(path()), std::nullopt);
  // Saving never writes over them.
  EXPECT_THAT(message_of<IoError>([&] { save(5); }), HasSubstr("choose another --save"));
  EXPECT_TRUE(std::filesystem::exists(path() / "iter_0000005/mp_rank_00/model_optim_rng.pt"));
}

TEST_F(CheckpointDirectoryTest, RemovesLeftoversOnly) {
  save(10);
  for (const char* name :
       {"iter_0000020.tmp-77", "iter_0000010.tmp-78-replaced", ".trash-iter_0000005-1", "mine",
        ".trash-iter_0000006", "latest_checkpointed_iteration.txt.tmp-9-1",
        "latest_checkpointed_iteration.txt.next", "release.tmp-3", ".staging", "iter_x.tmp-1",
        ".trash-mine"}) {
    std::filesystem::create_directories(path() / name / "inner");
  }
  remove_leftovers(path());
  EXPECT_THAT(names(), testing::UnorderedElementsAre("iter_0000010", kTrackerFile, "mine",
                                                     "iter_x.tmp-1", ".trash-mine"));
  remove_leftovers(path() / "absent");
}

TEST_F(CheckpointDirectoryTest, KeepsTheNewest) {
  for (const int64_t iteration : {10, 20, 30, 40}) save(iteration);
  save(50, {.keep_last = 2, .retain_interval = 20});
  EXPECT_THAT(iterations_in(path()), ElementsAre(20, 40, 50));
  save(60, {.keep_last = 1});
  EXPECT_THAT(iterations_in(path()), ElementsAre(60));
  EXPECT_THAT(names(), testing::UnorderedElementsAre("iter_0000060", kTrackerFile));
}

TEST_F(CheckpointDirectoryTest, OtherRunsKeepTheirs) {
  for (const int64_t iteration : {10, 20, 60}) save(iteration);
  EXPECT_THAT(foreign_iterations(path(), std::nullopt), ElementsAre(10, 20, 60));
  EXPECT_THAT(foreign_iterations(path(), path() / "iter_0000020"), ElementsAre(60));
  EXPECT_THAT(foreign_iterations(path(), "/elsewhere/iter_0000020"), ElementsAre(10, 20, 60));
  // One that the loaded run was stopped to name is its own.
  std::ofstream(path() / kNextTrackerFile) << "60";
  EXPECT_THAT(foreign_iterations(path(), path() / "iter_0000020"), IsEmpty());
  // A new run among them keeps its last and deletes none of theirs.
  save(5, {.keep_last = 1, .foreign = {10, 20, 60}});
  EXPECT_THAT(iterations_in(path()), ElementsAre(5, 10, 20, 60));
  save(15, {.keep_last = 1, .foreign = {10, 20, 60}});
  EXPECT_THAT(iterations_in(path()), ElementsAre(10, 15, 20, 60));
}

TEST_F(CheckpointDirectoryTest, NeverRemovesTheTrackedOneOrForeignOnes) {
  for (const int64_t iteration : {10, 20, 30}) save(iteration);
  std::filesystem::create_directories(path() / "iter_0000005/mp_rank_00");
  track("10");
  remove_old_checkpoints(path(), 1, 0);
  EXPECT_THAT(iterations_in(path()), ElementsAre(10, 30));
  EXPECT_TRUE(std::filesystem::exists(path() / "iter_0000005/mp_rank_00"));
  // A run that went back to iteration 10 and saves again there keeps what it has just saved.
  save(15, {.keep_last = 1});
  EXPECT_THAT(iterations_in(path()), ElementsAre(15, 30));
}

}  // namespace
}  // namespace megatron

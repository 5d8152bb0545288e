#include "megatron/training/profile_window.h"

#include <gtest/gtest.h>

#include "megatron/core/file.h"
#include "tests/support/temporary_directory.h"

namespace megatron {
namespace {

class ProfileWindowTest : public testing::Test {
 protected:
  // Iterations from `first` until 8 are done; those in which a tracer was active.
  std::vector<int64_t> traced(int rank, int64_t first = 0) {
    ProfileWindow window(config_, rank, {}, directory_.path() / "save");
    std::vector<int64_t> found;
    for (int64_t done = first; done < 8; ++done) {
      window.before_iteration(done);
      if (is_tracing()) found.push_back(done);
      { const TraceRange range("iteration"); }
      window.after_iteration(done + 1);
    }
    window.finish();
    return found;
  }
  std::filesystem::path file(const std::string& name) const { return directory_.path() / name; }

  TemporaryDirectory directory_;
  TrainingConfig config_;
};

TEST_F(ProfileWindowTest, TracesTheWindowOnceAndWritesItBesideTheCheckpoints) {
  config_.profile = true;
  config_.profile_step_start = 2;
  config_.profile_step_end = 4;
  EXPECT_EQ(traced(0), (std::vector<int64_t>{2, 3}));
  const std::string text = read_text(file("save/profile_rank0.json"));
  EXPECT_NE(text.find("\"name\":\"iteration\""), std::string::npos) << text;
}

TEST_F(ProfileWindowTest, PrefersTheFolderOfTensorBoard) {
  config_.profile = true;
  config_.profile_ranks = {1, 3};
  config_.profile_step_start = 0;
  config_.profile_step_end = 100;  // training ends inside the window
  config_.tensorboard_dir = file("board").string();
  EXPECT_EQ(traced(0), std::vector<int64_t>{});
  EXPECT_EQ(traced(3).size(), 8u);
  EXPECT_FALSE(std::filesystem::exists(file("board/profile_rank0.json")));
  EXPECT_TRUE(std::filesystem::exists(file("board/profile_rank3.json")));
}

TEST_F(ProfileWindowTest, ARunResumedInsideTheWindowTracesTheRestOfIt) {
  config_.profile = true;
  config_.profile_step_start = 2;
  config_.profile_step_end = 6;
  EXPECT_EQ(traced(0, 4), (std::vector<int64_t>{4, 5}));
  EXPECT_EQ(traced(0, 7), std::vector<int64_t>{});
}

TEST_F(ProfileWindowTest, IsOffWithoutTheFlag) {
  config_.profile_step_start = 0;
  EXPECT_EQ(traced(0), std::vector<int64_t>{});
  EXPECT_FALSE(std::filesystem::exists(file("save")));
}

}  // namespace
}  // namespace megatron

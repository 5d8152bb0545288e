#include "megatron/training/profile_window.h"

#include <gtest/gtest.h>

#include <map>
#include <nlohmann/json.hpp>

#include "megatron/comm/threads.h"
#include "megatron/core/file.h"
#include "tests/support/temporary_directory.h"

namespace megatron {
namespace {

class ProfileWindowTest : public testing::Test {
 protected:
  // Iterations from `first` until 8 are done; those in which a tracer was active.
  std::vector<int64_t> traced(int64_t first = 0, const comm::Group& world = {}) {
    ProfileWindow window(config_, world, {}, directory_.path() / "save");
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
  EXPECT_EQ(traced(), (std::vector<int64_t>{2, 3}));
  const std::string text = read_text(file("save/profile_rank0.json"));
  EXPECT_NE(text.find("\"name\":\"iteration\""), std::string::npos) << text;
}

TEST_F(ProfileWindowTest, SeveralRanksShareAFileInTheFolderOfTensorBoard) {
  config_.profile = true;
  config_.profile_ranks = {1, 3};
  config_.profile_step_start = 0;
  config_.profile_step_end = 100;  // training ends inside the window
  config_.tensorboard_dir = file("board").string();
  comm::run_ranks(4, [&](const comm::Group& world) {
    const bool is_wanted = world.rank() == 1 || world.rank() == 3;
    EXPECT_EQ(traced(0, world).size(), is_wanted ? 8u : 0u);
  });
  const nlohmann::json events = nlohmann::json::parse(read_text(file("board/profile.json")));
  std::map<int, int> iterations;  // by rank
  for (const nlohmann::json& event : events) {
    if (event.at("name") == "iteration") iterations[event.at("pid")] += 1;
  }
  EXPECT_EQ(iterations, (std::map<int, int>{{1, 8}, {3, 8}}));
}

TEST_F(ProfileWindowTest, ARunResumedInsideTheWindowTracesTheRestOfIt) {
  config_.profile = true;
  config_.profile_step_start = 2;
  config_.profile_step_end = 6;
  EXPECT_EQ(traced(4), (std::vector<int64_t>{4, 5}));
  EXPECT_EQ(traced(7), std::vector<int64_t>{});
}

TEST_F(ProfileWindowTest, IsOffWithoutTheFlag) {
  config_.profile_step_start = 0;
  EXPECT_EQ(traced(), std::vector<int64_t>{});
  EXPECT_FALSE(std::filesystem::exists(file("save")));
}

}  // namespace
}  // namespace megatron

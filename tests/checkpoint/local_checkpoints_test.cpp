#include "megatron/checkpoint/local_checkpoints.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <string>

#include "megatron/checkpoint/directory.h"
#include "megatron/comm/threads.h"
#include "megatron/core/error.h"
#include "tests/checkpoint/sample_state.h"
#include "tests/support/message_of.h"
#include "tests/support/temporary_directory.h"

namespace megatron {
namespace {

namespace fs = std::filesystem;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

// Each rank has the whole sample with its own values.
CheckpointState state_of_rank(int64_t iteration, int rank) {
  return sample_state(iteration, static_cast<uint64_t>(1000 * rank + iteration));
}

class LocalCheckpointsTest : public testing::Test {
 protected:
  // Two ranks on each host.
  fs::path host_of(int rank) const { return directory_.path() / std::to_string(rank / 2); }
  fs::path place(int host, int rank, int ranks) const {
    return directory_.path() / std::to_string(host) /
           ("rank_0000" + std::to_string(rank) + "-of-0000" + std::to_string(ranks));
  }
  // All ranks load the newest iteration; it has the values that each has saved.
  void expect_newest(int ranks, const Replication& replication, std::optional<int64_t> iteration) {
    comm::run_ranks(ranks, [&](const comm::Group& world) {
      LocalCheckpoints local(host_of(world.rank()), replication, world);
      EXPECT_EQ(local.newest(blank_state()), iteration);
      if (!iteration) return;
      CheckpointState back = parts_as_tensors(blank_state());
      load_checkpoint(local.open(*iteration), back);
      back.args.erase("local_layout");
      expect_same(back, state_of_rank(*iteration, world.rank()));
    });
  }

  TemporaryDirectory directory_;
};

TEST(ReplicationTest, MembersAreAJumpApart) {
  EXPECT_THAT((Replication{.jump = 1, .factor = 1}.members(5)), ElementsAre(5));
  EXPECT_THAT((Replication{.jump = 2, .factor = 2}.members(5)), ElementsAre(5, 7));
  EXPECT_THAT((Replication{.jump = 4, .factor = 2}.members(5)), ElementsAre(1, 5));
  EXPECT_THAT((Replication{.jump = 1, .factor = 3}.members(5)), ElementsAre(3, 4, 5));
  EXPECT_THAT((Replication{.jump = 2, .factor = 3}.members(5)), ElementsAre(1, 3, 5));
}

TEST_F(LocalCheckpointsTest, AreReadByTheRanksThatSavedThem) {
  expect_newest(2, {}, std::nullopt);
  comm::run_ranks(2, [&](const comm::Group& world) {
    LocalCheckpoints local(host_of(world.rank()), {}, world);
    EXPECT_TRUE(local.has_no_copies());
    for (const int64_t iteration : {10, 20, 30}) {
      local.save(state_of_rank(iteration, world.rank()));
    }
    EXPECT_THAT(iterations_in(place(0, world.rank(), 2)), ElementsAre(20, 30));
    EXPECT_EQ(local.newest_of_any_run(), 30);
  });
  expect_newest(2, {}, 30);
  expect_newest(4, {}, std::nullopt);  // another number of ranks
}

TEST_F(LocalCheckpointsTest, ALostHostGetsItsCheckpointsFromTheOthers) {
  for (const Replication& replication :
       {Replication{.jump = 2, .factor = 2}, Replication{.jump = 2, .factor = 3}}) {
    const auto hosts = static_cast<int>(replication.factor);
    const auto lose = [&](int host) { fs::remove_all(directory_.path() / std::to_string(host)); };
    for (int lost = 0; lost < hosts; ++lost) {
      const int64_t iteration = 10 * (lost + 1);
      comm::run_ranks(2 * hosts, [&](const comm::Group& world) {
        LocalCheckpoints local(host_of(world.rank()), replication, world);
        EXPECT_FALSE(local.has_no_copies());
        local.save(state_of_rank(iteration - 1, world.rank()));
        local.save(state_of_rank(iteration, world.rank()));
      });
      lose(lost);
      if (hosts == 3) lose((lost + 1) % hosts);  // one host of three is enough
      expect_newest(2 * hosts, replication, iteration);
    }
    for (int host = 0; host < hosts; ++host) lose(host);
  }
}

// Rank 3 was stopped before its save of iteration 30 appeared.
TEST_F(LocalCheckpointsTest, AnIterationCountsOnceAllRanksHaveIt) {
  const Replication replication{.jump = 2, .factor = 2};
  comm::run_ranks(4, [&](const comm::Group& world) {
    LocalCheckpoints local(host_of(world.rank()), replication, world);
    local.save(state_of_rank(20, world.rank()));
    local.save(state_of_rank(30, world.rank()));
  });
  fs::remove_all(place(1, 3, 4) / "iter_0000030");
  expect_newest(4, replication, 30);  // the other host has a copy
  fs::remove_all(place(1, 3, 4) / "iter_0000030");
  fs::remove_all(place(0, 3, 4) / "iter_0000030");
  expect_newest(4, replication, 20);
}

TEST_F(LocalCheckpointsTest, RanksOfOneDirectoryExchangeNoCopies) {
  comm::run_ranks(2, [&](const comm::Group& world) {
    LocalCheckpoints local(host_of(0), {.jump = 1, .factor = 2}, world);
    EXPECT_TRUE(local.has_no_copies());
    local.save(state_of_rank(10, world.rank()));
  });
  expect_newest(2, {.jump = 1, .factor = 2}, 10);
}

TEST_F(LocalCheckpointsTest, OfAnotherRunDoNotCountAndMayBeCleared) {
  comm::run_ranks(2, [&](const comm::Group& world) {
    LocalCheckpoints local(host_of(0), {}, world);
    local.save(state_of_rank(10, world.rank()));
    EXPECT_EQ(local.newest(blank_state()), 10);
    CheckpointState other = blank_state();
    other.args["save"] = std::string("elsewhere");
    EXPECT_EQ(local.newest(other), std::nullopt);
    other = blank_state();
    if (world.rank() == 1) other.model.pop_back();  // another layout
    EXPECT_EQ(local.newest(other), std::nullopt);
    EXPECT_EQ(local.newest_of_any_run(), 10);
    local.clear();
    EXPECT_THAT(iterations_in(place(0, world.rank(), 2)), IsEmpty());
  });
}

TEST_F(LocalCheckpointsTest, PartsOfTensorsAreTensorsOfTheirOwn) {
  CheckpointState state;
  const Tensor part = full({2, 3}, 1, DType::kFloat32, Stream{});
  state.model = {whole_tensor("whole", part),
                 {.name = "divided", .data = part, .whole = {8, 3}, .offset = {4, 0}}};
  state.optimizer["exp_avg"] = {{.name = "flat", .data = part, .whole = {2, 9}, .offset = {0, 6}}};
  const CheckpointState parts = parts_as_tensors(state);
  EXPECT_EQ(parts.model[0].name, "whole");
  EXPECT_EQ(parts.model[1].name, "divided#4,0");
  EXPECT_EQ(parts.model[1].whole, Shape({2, 3}));
  EXPECT_THAT(parts.model[1].offset, ElementsAre(0, 0));
  EXPECT_EQ(parts.optimizer.at("exp_avg")[0].name, "flat#0,6");
}

TEST_F(LocalCheckpointsTest, AFolderArrivesAsItWasSent) {
  const fs::path from = directory_.path() / "from";
  fs::create_directories(from);
  std::ofstream(from / "empty");
  std::ofstream(from / "short") << "abc";
  std::ofstream(from / "long") << std::string(4'000'001, 'x') << "end";
  comm::run_ranks(3, [&](const comm::Group& world) {
    const fs::path to = directory_.path() / ("to" + std::to_string(world.rank()));
    const int next = (world.rank() + 1) % 3;
    const int previous = (world.rank() + 2) % 3;
    // Rank 2 only receives, and rank 0 only sends.
    exchange_folders({.folder = world.rank() == 2 ? fs::path() : from,
                      .to_rank = next,
                      .place = world.rank() == 0 ? fs::path() : to,
                      .from_rank = previous},
                     make_folder_groups(world));
    if (world.rank() == 0) return;
    const auto content = [](const fs::path& path) {
      std::ifstream file(path, std::ios::binary);
      return std::string(std::istreambuf_iterator<char>(file), {});
    };
    for (const char* name : {"empty", "short", "long"}) {
      EXPECT_TRUE(content(to / name) == content(from / name)) << name;
    }
  });
}

TEST_F(LocalCheckpointsTest, ADirectoryThatCannotBeMadeIsNamed) {
  std::ofstream(directory_.path() / "file");
  EXPECT_THAT(
      message_of<IoError>([&] { LocalCheckpoints(directory_.path() / "file" / "local", {}, {}); }),
      HasSubstr("--non-persistent-local-ckpt-dir"));
}

}  // namespace
}  // namespace megatron

#include "megatron/checkpoint/async_save.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <fstream>
#include <map>
#include <string>

#include "megatron/checkpoint/directory.h"
#include "megatron/checkpoint/load.h"
#include "megatron/comm/threads.h"
#include "megatron/core/error.h"
#include "tests/checkpoint/file_size_limit.h"
#include "tests/checkpoint/sample_state.h"
#include "tests/support/message_of.h"
#include "tests/support/temporary_directory.h"

namespace megatron {
namespace {

namespace fs = std::filesystem;
using testing::HasSubstr;

// The rows of each tensor that a rank of several has.
CheckpointState part_of(const CheckpointState& state, int rank, int ranks) {
  CheckpointState part = state;
  const auto cut = [&](std::vector<CheckpointTensor>& tensors) {
    std::vector<CheckpointTensor> kept;
    for (const CheckpointTensor& tensor : tensors) {
      const int64_t rows = tensor.whole.rank() == 0 ? 0 : tensor.whole[0];
      if (rows < ranks) {
        if (rank == 0) kept.push_back(tensor);
        continue;
      }
      const int64_t begin = rows * rank / ranks;
      kept.push_back(tensor);
      kept.back().data = tensor.data.slice(begin, rows * (rank + 1) / ranks - begin);
      kept.back().offset[0] = begin;
    }
    tensors = std::move(kept);
  };
  cut(part.model);
  for (auto& [section, tensors] : part.optimizer) cut(tensors);
  return part;
}

void overwrite(const CheckpointState& state) {
  const auto clear = [](const std::vector<CheckpointTensor>& tensors) {
    for (const CheckpointTensor& tensor : tensors) {
      Tensor data = tensor.data;
      zero_bytes(data.view().data, data.bytes(), Stream{});
    }
  };
  clear(state.model);
  for (const auto& [section, tensors] : state.optimizer) clear(tensors);
}

std::map<std::string, std::string> files_in(const fs::path& directory) {
  std::map<std::string, std::string> files;
  for (const auto& entry : fs::recursive_directory_iterator(directory)) {
    if (!entry.is_regular_file()) continue;
    std::ifstream file(entry.path(), std::ios::binary);
    files[fs::relative(entry.path(), directory).string()] = {std::istreambuf_iterator<char>(file),
                                                             {}};
  }
  return files;
}

class AsyncSaverTest : public testing::Test {
 protected:
  fs::path path(const std::string& name) const { return directory_.path() / name; }
  TemporaryDirectory directory_;
};

TEST_F(AsyncSaverTest, WritesTheBytesOfASaveThatWaits) {
  for (const int ranks : {1, 3}) {
    const fs::path waited = path("waited" + std::to_string(ranks));
    const fs::path async = path("async" + std::to_string(ranks));
    comm::run_ranks(ranks, [&](const comm::Group& world) {
      AsyncSaver saver(async, {}, world);
      for (const int iteration : {10, 20}) {
        const auto seed = static_cast<uint64_t>(iteration);
        const CheckpointState state =
            part_of(sample_state(iteration, seed), world.rank(), world.size());
        save_checkpoint(waited, state, {}, world);
        saver.save(state);
        overwrite(state);  // training goes on
        EXPECT_TRUE(saver.is_under_way());
        EXPECT_EQ(saver.finish(), iteration);
        EXPECT_EQ(saver.finish(), std::nullopt);
        EXPECT_EQ(saver.finish_if_written(), std::nullopt);
      }
    });
    EXPECT_EQ(files_in(async), files_in(waited));
    EXPECT_GT(files_in(async).size(), 6u);
    CheckpointState back = blank_state();
    load_checkpoint(find_checkpoint(async).value(), back);
    expect_same(back, sample_state(20, 20));
  }
}

TEST_F(AsyncSaverTest, TheLatestIsTheOneBeforeUntilAllHaveWritten) {
  comm::run_ranks(2, [&](const comm::Group& world) {
    AsyncSaver saver(path("save"), {.keep_last = 1}, world);
    saver.save(part_of(sample_state(10, 1), world.rank(), 2));
    EXPECT_EQ(saver.finish(), 10);
    saver.save(part_of(sample_state(20, 2), world.rank(), 2));
    EXPECT_EQ(latest_iteration(path("save")), 10);
    std::optional<int64_t> saved;
    while (!saved) saved = saver.finish_if_written();
    EXPECT_EQ(saved, 20);
    EXPECT_EQ(latest_iteration(path("save")), 20);
  });
  EXPECT_FALSE(fs::exists(path("save") / iteration_directory_name(10)));
}

TEST_F(AsyncSaverTest, ASaveThatIsGivenUpLeavesNothing) {
  save_checkpoint(path("save"), sample_state(10, 1));
  const auto before = files_in(path("save"));
  {
    AsyncSaver saver(path("save"), {}, {});
    saver.save(sample_state(20, 2));
  }
  EXPECT_EQ(files_in(path("save")), before);
}

TEST_F(AsyncSaverTest, AKilledProgramLeavesTheOneBefore) {
  save_checkpoint(path("save"), sample_state(10, 1));
  const pid_t child = ::fork();
  if (child == 0) {
    AsyncSaver saver(path("save"), {}, {});
    saver.save(sample_state(20, 2));
    ::kill(::getpid(), SIGKILL);
  }
  ::waitpid(child, nullptr, 0);
  EXPECT_EQ(latest_iteration(path("save")), 10);
  CheckpointState back = blank_state();
  load_checkpoint(find_checkpoint(path("save")).value(), back);
  expect_same(back, sample_state(10, 1));
  remove_leftovers(path("save"));
  EXPECT_FALSE(fs::exists(path("save") / iteration_directory_name(20)));
}

TEST_F(AsyncSaverTest, WhatKeepsARankFromWritingIsSaidWhenTheSaveIsFinished) {
  save_checkpoint(path("save"), sample_state(10, 1));
  const auto before = files_in(path("save"));
  for (const rlim_t limit : {100u, 700u, 3000u}) {  // weights, optimizer, manifest
    const FileSizeLimit full_disk(limit);
    const std::string message = message_of<IoError>([&] {
      comm::run_ranks(2, [&](const comm::Group& world) {
        AsyncSaver saver(path("save"), {}, world);
        saver.save(part_of(sample_state(20, 2), world.rank(), 2));
        saver.finish();
      });
    });
    EXPECT_THAT(message, HasSubstr("iteration 20 was not saved: "));
    EXPECT_THAT(message, HasSubstr("cannot write: File too large"));
    EXPECT_THAT(message, HasSubstr("the checkpoint of iteration 10 is unharmed"));
    EXPECT_EQ(files_in(path("save")), before);
  }
}

}  // namespace
}  // namespace megatron

#include "megatron/checkpoint/save.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <filesystem>
#include <limits>
#include <set>
#include <string>
#include <thread>

#include "megatron/checkpoint/directory.h"
#include "megatron/checkpoint/load.h"
#include "megatron/core/error.h"
#include "megatron/core/file.h"
#include "megatron/device/allocator.h"
#include "megatron/formats/safetensors.h"
#include "tests/checkpoint/file_size_limit.h"
#include "tests/checkpoint/sample_state.h"
#include "tests/support/temporary_directory.h"

namespace megatron {
namespace {

using testing::HasSubstr;

class SaveCheckpointTest : public testing::Test {
 protected:
  std::set<std::string> names() const {
    std::set<std::string> found;
    for (const auto& entry : std::filesystem::directory_iterator(path())) {
      found.insert(entry.path().filename().string());
    }
    return found;
  }
  CheckpointState loaded() const {
    CheckpointState state = blank_state();
    load_checkpoint(find_checkpoint(path()).value(), state);
    return state;
  }
  const std::filesystem::path& path() const { return directory_.path(); }

  TemporaryDirectory directory_;
};

TEST_F(SaveCheckpointTest, RoundTripsEveryBit) {
  const CheckpointState state = sample_state(20, 1);
  save_checkpoint(path() / "new" / "deep", state);
  CheckpointState back = blank_state();
  load_checkpoint(find_checkpoint(path() / "new" / "deep").value(), back);
  expect_same(back, state);
}

TEST_F(SaveCheckpointTest, RoundTripsEveryKindOfScalar) {
  CheckpointState state = sample_state(1, 1);
  state.scalars["all"] = {{"none", std::monostate()},
                          {"yes", true},
                          {"small", int64_t{-5}},
                          {"large", INT64_MAX},
                          {"third", 1.0 / 3},
                          {"whole", 2.0},
                          {"tiny", 5e-324},
                          {"endless", std::numeric_limits<double>::infinity()},
                          {"minus endless", -std::numeric_limits<double>::infinity()},
                          {"text", std::string("a \"b\"\n\xC3\xA9")},
                          {"dtype", DType::kBFloat16},
                          {"numbers", std::vector<int64_t>{1, 2}},
                          {"none at all", std::vector<int64_t>{}},
                          {"texts", std::vector<std::string>{"a", ""}}};
  state.args = state.scalars["all"];
  save_checkpoint(path(), state);
  EXPECT_EQ(loaded().scalars, state.scalars);
  EXPECT_EQ(loaded().args, state.args);
}

TEST_F(SaveCheckpointTest, FilesAreReadableByThirdParties) {
  save_checkpoint(path(), sample_state(20, 1));
  const SafetensorsFile file(path() / "iter_0000020/weights-00000-of-00001.safetensors");
  EXPECT_EQ(file.at("embedding.word_embeddings.weight").shape, Shape({32, 6}));
}

TEST_F(SaveCheckpointTest, CopiesNothingOfTheModel) {
  const CheckpointState state = sample_state(20, 1);
  allocator_of(Device{}).reset_peaks();
  const int64_t before = allocator_of(Device{}).stats().allocated_bytes;
  save_checkpoint(path(), state);
  EXPECT_EQ(allocator_of(Device{}).stats().peak_allocated_bytes, before);
}

TEST_F(SaveCheckpointTest, SavingAnIterationAgainReplacesIt) {
  save_checkpoint(path(), sample_state(20, 1));
  save_checkpoint(path(), sample_state(20, 2));
  expect_same(loaded(), sample_state(20, 2));
  EXPECT_THAT(names(), testing::UnorderedElementsAre("iter_0000020", kTrackerFile));
}

TEST_F(SaveCheckpointTest, SavesChunksAndLoadsOtherChunks) {
  const Tensor whole = random_normal({6, 8}, {.seed = 5});
  // Three ranks: two shards of rows, the second cut once more by columns.
  const auto part = [&](int64_t row, int64_t rows, int64_t column, int64_t columns) {
    std::vector<float> values;
    for (int64_t i = row; i < row + rows; ++i) {
      for (int64_t j = column; j < column + columns; ++j) {
        values.push_back(whole.span<float>()[static_cast<size_t>(i * 8 + j)]);
      }
    }
    return CheckpointTensor{"w", tensor_of(values, {rows, columns}), {6, 8}, {row, column}};
  };
  CheckpointState state;
  state.iteration = 1;
  state.model = {part(0, 2, 0, 8), part(2, 4, 0, 3), part(2, 4, 3, 5)};
  save_checkpoint(path(), state);

  const CheckpointContents contents = open_checkpoint(find_checkpoint(path()).value());
  for (const auto& want : {part(0, 6, 0, 8), part(1, 4, 2, 4), part(5, 1, 7, 1)}) {
    const CheckpointTensor target{"w", empty_like(want.data), want.whole, want.offset};
    read_section(contents, kWeightsSection, {&target, 1});
    expect_identical(target.data, want.data);
  }
  state.model.pop_back();
  EXPECT_THROW(save_checkpoint(path(), state), InternalError);
  state.model.push_back(part(1, 5, 3, 5));
  EXPECT_THROW(save_checkpoint(path(), state), InternalError);
}

TEST_F(SaveCheckpointTest, AFailedWriteLeavesTheOldCheckpoint) {
  save_checkpoint(path(), sample_state(10, 1));
  // The sizes let the save fail in the weights, the optimizer's state, and the manifest.
  for (const rlim_t limit : {100u, 1000u, 1800u, 3000u}) {
    const FileSizeLimit full_disk(limit);
    const std::string message =
        message_of<IoError>([&] { save_checkpoint(path(), sample_state(20, 2)); });
    EXPECT_THAT(message, HasSubstr("iteration 20 was not saved: "));
    EXPECT_THAT(message, HasSubstr("cannot write: File too large; raise the limit"));
    EXPECT_THAT(message, HasSubstr("the checkpoint of iteration 10 is unharmed"));
    EXPECT_THAT(names(), testing::UnorderedElementsAre("iter_0000010", kTrackerFile));
  }
  expect_same(loaded(), sample_state(10, 1));
  save_checkpoint(path(), sample_state(20, 2));
  expect_same(loaded(), sample_state(20, 2));
}

TEST_F(SaveCheckpointTest, AFailureWhileReplacingLeavesTheOldOne) {
  save_checkpoint(path(), sample_state(10, 1));
  {
    const FileSizeLimit full_disk(1000);
    EXPECT_THROW(save_checkpoint(path(), sample_state(10, 2)), IoError);
  }
  expect_same(loaded(), sample_state(10, 1));
}

// An exception from anywhere in the middle of a save.
TEST_F(SaveCheckpointTest, AnInterruptedSaveLeavesNothing) {
  save_checkpoint(path(), sample_state(10, 1));
  CheckpointState broken = sample_state(20, 2);
  broken.optimizer["main_param"].push_back(broken.optimizer["main_param"].front());
  EXPECT_THROW(save_checkpoint(path(), broken), InternalError);
  EXPECT_THAT(names(), testing::UnorderedElementsAre("iter_0000010", kTrackerFile));
  expect_same(loaded(), sample_state(10, 1));
}

TEST_F(SaveCheckpointTest, ExplainsADirectoryThatCannotBe) {
  write_text_atomically(path() / "file", "x");
  EXPECT_THAT(message_of<IoError>([&] { save_checkpoint(path() / "file", sample_state(1, 1)); }),
              HasSubstr("there is no earlier checkpoint"));
}

// kill -9 at any moment: the latest checkpoint is complete, and the next save works.
TEST_F(SaveCheckpointTest, SurvivesBeingKilled) {
  save_checkpoint(path(), sample_state(1, 1));
  for (int round = 0; round < 12; ++round) {
    const int64_t before = latest_iteration(path()).value();
    const pid_t child = ::fork();
    if (child == 0) {
      for (int64_t i = before + 1;; ++i) {
        save_checkpoint(path(), sample_state(i, static_cast<uint64_t>(i)), {.keep_last = 2});
      }
    }
    ASSERT_GT(child, 0);
    std::this_thread::sleep_for(std::chrono::milliseconds(3 + 4 * round));
    ::kill(child, SIGKILL);
    ::waitpid(child, nullptr, 0);

    const int64_t latest = latest_iteration(path()).value();
    EXPECT_GE(latest, before);
    expect_same(loaded(), sample_state(latest, static_cast<uint64_t>(latest)));
    remove_leftovers(path());
    for (const std::string& name : names()) EXPECT_EQ(name.find("tmp-"), std::string::npos);
  }
}

}  // namespace
}  // namespace megatron

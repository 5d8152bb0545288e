#include "megatron/training/progress_file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>

#include "megatron/core/error.h"
#include "megatron/core/file.h"

namespace megatron {
namespace {

using testing::HasSubstr;
using testing::MatchesRegex;

class ProgressFileTest : public testing::Test {
 protected:
  void SetUp() override { std::filesystem::remove_all(path_.parent_path()); }

  const std::filesystem::path path_ =
      std::filesystem::path(testing::TempDir()) / "progress_file_test" / "progress.txt";
};

TEST_F(ProgressFileTest, WritesMegatronsLines) {
  ProgressFile file(path_, 1, {});
  file.saved_checkpoint(
      {.iteration = 20, .consumed_train_samples = 1000000, .floating_point_operations = 1.5e15},
      2'048'000'000);
  EXPECT_THAT(read_text(path_),
              MatchesRegex("....-..-.. ..:..:..\tJob ID: .*\t# GPUs: 1\tStarting job\n"
                           "....-..-.. ..:..:..\tJob ID: .*\t# GPUs: 1\tSaved checkpoint\t"
                           "Iteration: 20\tJob throughput: [0-9.]+ TFLOP/s/GPU\t"
                           "Cumulative throughput: [0-9.]+ TFLOP/s/GPU\t"
                           "Floating-point operations: 1.50e\\+15\tTokens .in billions.: 2.05\n"));
}

TEST_F(ProgressFileTest, CumulativeStartsAtTheFirstJobOfTheSameSize) {
  std::filesystem::create_directories(path_.parent_path());
  std::ofstream(path_)
      << "2020-01-01 00:00:00\tJob ID: 1\t# GPUs: 8\tStarting job\n"
      << "2020-01-01 01:00:00\tJob ID: 1\t# GPUs: 8\tSaved checkpoint\tIteration: 1\tJob "
         "throughput: 1.0 TFLOP/s/GPU\tCumulative throughput: 1.0 TFLOP/s/GPU\tFloating-point "
         "operations: 1.00e+20\tTokens (in billions): 0.10\n"
      << "2020-01-02 00:00:00\tJob ID: 2\t# GPUs: 1\tStarting job\n";
  ProgressFile file(path_, 1, {.floating_point_operations = 1e20});
  // 1e24 operations in all since 2020-01-02, a few seconds of them in this job.
  file.saved_checkpoint({.iteration = 2, .floating_point_operations = 1e24}, 1);
  const std::string text = read_text(path_);
  const auto number_after = [&](const char* name) {
    return std::stod(text.substr(text.rfind(name) + std::string(name).size()));
  };
  EXPECT_GT(number_after("Job throughput: "), 1e6);
  EXPECT_LT(number_after("Cumulative throughput: "), 1e4);
}

TEST_F(ProgressFileTest, NamesAFileItCannotWrite) {
  EXPECT_THAT([] { ProgressFile("/dev/null/progress.txt", 1, {}); },
              testing::ThrowsMessage<IoError>(HasSubstr("--log-progress")));
}

}  // namespace
}  // namespace megatron

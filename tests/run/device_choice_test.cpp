#include "megatron/run/device_choice.h"

#include <gtest/gtest.h>

#include <map>
#include <string>

namespace megatron {
namespace {

bool has_own(const std::map<std::string, std::string>& variables) {
  return has_own_gpus([&](const char* name) {
    const auto found = variables.find(name);
    return found == variables.end() ? nullptr : found->second.c_str();
  });
}

TEST(DeviceChoiceTest, ARankTakesTheGpuOfItsNumber) {
  EXPECT_EQ(gpu_of(0, 1, {8}, false), 0);
  EXPECT_EQ(gpu_of(5, 8, {8}, false), 5);
  EXPECT_EQ(gpu_of(5, 8, {8, true}, false), 5);
}

TEST(DeviceChoiceTest, ThreadsShareGpus) {
  EXPECT_EQ(gpu_of(5, 8, {2}, true), 1);
  EXPECT_EQ(gpu_of(7, 8, {1, true}, true), 0);
}

// srun --gpus-per-task=1: each process sees its own GPU as number 0.
TEST(DeviceChoiceTest, AProcessTakesTheFirstOfItsOwnGpus) {
  EXPECT_EQ(gpu_of(3, 4, {1, true}, false), 0);
  EXPECT_EQ(gpu_of(3, 4, {2, true}, false), 0);
  EXPECT_EQ(gpu_of(3, 4, {1, false}, false), std::nullopt);
}

TEST(DeviceChoiceTest, TheLauncherTellsWhoseTheGpusAre) {
  EXPECT_FALSE(has_own({}));
  EXPECT_TRUE(has_own({{"SLURM_GPUS_PER_TASK", "1"}}));
  EXPECT_TRUE(has_own({{"CUDA_VISIBLE_DEVICES", "3"}}));
  EXPECT_FALSE(has_own({{"CUDA_VISIBLE_DEVICES", "0,1"}}));
  EXPECT_FALSE(has_own({{"CUDA_VISIBLE_DEVICES", ""}}));
  EXPECT_FALSE(has_own({{"CUDA_VISIBLE_DEVICES", "3"}, {"GROUP_RANK", "0"}}));
}

}  // namespace
}  // namespace megatron

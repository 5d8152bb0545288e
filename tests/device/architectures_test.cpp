#include "megatron/device/architectures.h"

#include <gtest/gtest.h>

namespace megatron {
namespace {

// A100, A6000, 4090, H100, GB300 and 5090 are 8.0, 8.6, 8.9, 9.0, 10.3 and 12.0.
TEST(ArchitecturesTest, MachineCodeRunsOnItsMajorNumber) {
  constexpr const char* kBuild = "80-real,90a-real";
  EXPECT_FALSE(has_code_for(kBuild, 7, 5));
  EXPECT_TRUE(has_code_for(kBuild, 8, 0));
  EXPECT_TRUE(has_code_for(kBuild, 8, 6));
  EXPECT_TRUE(has_code_for(kBuild, 8, 9));
  EXPECT_TRUE(has_code_for(kBuild, 9, 0));
  EXPECT_FALSE(has_code_for(kBuild, 9, 1));  // the letter
  EXPECT_FALSE(has_code_for(kBuild, 10, 0));
  EXPECT_FALSE(has_code_for("86-real", 8, 0));
}

TEST(ArchitecturesTest, PtxRunsOnLaterGpus) {
  EXPECT_TRUE(has_code_for("80", 8, 0));
  EXPECT_TRUE(has_code_for("80", 12, 0));
  EXPECT_TRUE(has_code_for("80-virtual", 9, 0));
  EXPECT_FALSE(has_code_for("90a", 10, 0));
  EXPECT_FALSE(has_code_for("100-virtual", 9, 0));
  EXPECT_TRUE(has_code_for("100f-real", 10, 3));
  EXPECT_FALSE(has_code_for("100f", 12, 0));
}

TEST(ArchitecturesTest, TheFatBuildServesAllSinceA100) {
  constexpr const char* kAll = "80-real,86-real,89-real,90a-real,100-real,120";
  for (const auto& [major, minor] :
       {std::pair{8, 0}, {8, 6}, {8, 9}, {9, 0}, {10, 0}, {10, 3}, {12, 0}, {12, 1}, {13, 0}}) {
    EXPECT_TRUE(has_code_for(kAll, major, minor)) << major << '.' << minor;
  }
  EXPECT_EQ(gpus_of(kAll), "8.0, 8.6, 8.9, 9.0a, 10.0, 12.0 and later");
}

}  // namespace
}  // namespace megatron

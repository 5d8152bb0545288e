#include "megatron/comm/launch_environment.h"

#include <gtest/gtest.h>

#include <map>
#include <string>

#include "tests/support/message_of.h"

namespace megatron::comm {
namespace {

using Variables = std::map<std::string, std::string>;

std::optional<LaunchEnvironment> place(const Variables& variables) {
  return launch_environment([&](const char* name) {
    const auto found = variables.find(name);
    return found == variables.end() ? nullptr : found->second.c_str();
  });
}

void expect_place(const Variables& variables, const LaunchEnvironment& want) {
  const std::optional<LaunchEnvironment> got = place(variables);
  ASSERT_TRUE(got);
  EXPECT_EQ(got->launcher, want.launcher);
  EXPECT_EQ(got->rank, want.rank);
  EXPECT_EQ(got->size, want.size);
  EXPECT_EQ(got->local_rank, want.local_rank);
  EXPECT_EQ(got->local_size, want.local_size);
  EXPECT_EQ(got->master_address, want.master_address);
  EXPECT_EQ(got->master_port, want.master_port);
}

constexpr auto kMpi = LaunchEnvironment::Launcher::kMpi;
constexpr auto kVariables = LaunchEnvironment::Launcher::kVariables;

TEST(LaunchEnvironmentTest, AloneThereIsNone) {
  EXPECT_FALSE(place({}));
  EXPECT_FALSE(place({{"RANK", "3"}}));
}

TEST(LaunchEnvironmentTest, ReadsOpenMpi) {
  expect_place({{"OMPI_COMM_WORLD_RANK", "5"},
                {"OMPI_COMM_WORLD_SIZE", "8"},
                {"OMPI_COMM_WORLD_LOCAL_RANK", "1"},
                {"OMPI_COMM_WORLD_LOCAL_SIZE", "4"}},
               {kMpi, 5, 8, 1, 4, "", 0});
}

TEST(LaunchEnvironmentTest, ReadsSlurmStepsOnly) {
  Variables variables = {{"SLURM_PROCID", "5"},
                         {"SLURM_NTASKS", "8"},
                         {"SLURM_LOCALID", "1"},
                         {"SLURM_STEP_TASKS_PER_NODE", "4(x2)"}};
  EXPECT_FALSE(place(variables));  // a batch script
  variables["SLURM_STEP_NUM_TASKS"] = "8";
  expect_place(variables, {kMpi, 5, 8, 1, 4, "", 0});
  variables["MASTER_ADDR"] = "gpu1";
  variables["MASTER_PORT"] = "29500";
  expect_place(variables, {kVariables, 5, 8, 1, 4, "gpu1", 29500});
}

TEST(LaunchEnvironmentTest, ReadsPmi) {
  expect_place({{"PMI_RANK", "1"}, {"PMI_SIZE", "2"}, {"MPI_LOCALRANKID", "1"}},
               {kMpi, 1, 2, 1, 2, "", 0});
}

TEST(LaunchEnvironmentTest, ReadsTorchrun) {
  expect_place({{"RANK", "2"},
                {"WORLD_SIZE", "4"},
                {"LOCAL_RANK", "0"},
                {"LOCAL_WORLD_SIZE", "2"},
                {"MASTER_ADDR", "gpu1"},
                {"MASTER_PORT", "29500"}},
               {kVariables, 2, 4, 0, 2, "gpu1", 29500});
  expect_place({{"RANK", "0"}, {"WORLD_SIZE", "1"}}, {kVariables, 0, 1, 0, 1, "", 0});
}

TEST(LaunchEnvironmentTest, NonsenseIsNamed) {
  EXPECT_EQ(message_of<ConfigError>([] {
              place({{"RANK", "first"}, {"WORLD_SIZE", "2"}});
            }),
            "environment variable RANK is first, expected a whole number; unset it to run alone");
  EXPECT_EQ(message_of<ConfigError>([] {
              place({{"PMI_RANK", "2"}, {"PMI_SIZE", "2"}});
            }),
            "environment variables PMI_RANK=2 and PMI_SIZE=2, MPI_LOCALRANKID=0 and "
            "MPI_LOCALNRANKS=1: a rank must be below its size; unset them to run alone");
  EXPECT_EQ(
      message_of<ConfigError>([] {
        place({{"RANK", "0"}, {"WORLD_SIZE", "2"}});
      }),
      "RANK and WORLD_SIZE are set, MASTER_ADDR or MASTER_PORT is not: set them to the host of "
      "rank 0 and a free port there, or unset RANK to run alone");
}

}  // namespace
}  // namespace megatron::comm

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
constexpr auto kTcp = LaunchEnvironment::Launcher::kTcp;

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
  Variables variables = {{"SLURM_JOB_ID", "67108863"}, {"SLURM_PROCID", "5"},
                         {"SLURM_NTASKS", "8"},        {"SLURM_LOCALID", "1"},
                         {"SLURM_NODEID", "1"},        {"SLURM_STEP_TASKS_PER_NODE", "4(x2)"}};
  EXPECT_FALSE(place(variables));  // a batch script
  variables["SLURM_STEP_NUM_TASKS"] = "8";
  variables["SLURM_STEP_ID"] = "2";
  variables["SLURM_STEP_NODELIST"] = "gpu[1-2]";
  expect_place(variables, {kTcp, 5, 8, 1, 4, "gpu1", 25165});
  variables["MASTER_PORT"] = "29500";
  expect_place(variables, {kTcp, 5, 8, 1, 4, "gpu1", 29500});
  variables["PMIX_RANK"] = "5";
  variables.erase("MASTER_PORT");
  expect_place(variables, {kMpi, 5, 8, 1, 4, "", 0});
  variables["MASTER_ADDR"] = "gpu1";
  expect_place(variables, {kTcp, 5, 8, 1, 4, "gpu1", 25165});
}

TEST(LaunchEnvironmentTest, ReadsSlurmLists) {
  Variables variables = {{"SLURM_PROCID", "0"},
                         {"SLURM_STEP_NODELIST", "gpu1"},
                         {"SLURM_STEP_NUM_TASKS", "12"},
                         {"SLURM_LOCALID", "0"},
                         {"SLURM_STEP_TASKS_PER_NODE", "4(x2),3,1"}};
  const std::map<std::string, int> sizes = {{"0", 4}, {"1", 4}, {"2", 3}, {"3", 1}, {"4", 1}};
  for (const auto& [node, want] : sizes) {
    variables["SLURM_NODEID"] = node;
    EXPECT_EQ(place(variables)->local_size, want) << node;
  }
  const std::map<std::string, std::string> firsts = {{"gpu7", "gpu7"},
                                                     {"gpu7,gpu[1-3]", "gpu7"},
                                                     {"gpu[07-09,12],login1", "gpu07"},
                                                     {"r[3,5]n[01-16]-ib", "r3n01-ib"},
                                                     {"gpu[", "gpu"}};
  for (const auto& [list, want] : firsts) {
    variables["SLURM_STEP_NODELIST"] = list;
    EXPECT_EQ(place(variables)->master_address, want) << list;
  }
  variables["SLURM_STEP_ID"] = "4294967290";  // of an interactive step
  EXPECT_GT(place(variables)->master_port, 1024);
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
               {kTcp, 2, 4, 0, 2, "gpu1", 29500});
  expect_place({{"RANK", "0"}, {"WORLD_SIZE", "1"}}, {kTcp, 0, 1, 0, 1, "", 0});
}

TEST(LaunchEnvironmentTest, LeavesTheAgentOfTorchrunItsPort) {
  const Variables variables = {{"RANK", "1"},
                               {"WORLD_SIZE", "2"},
                               {"LOCAL_RANK", "1"},
                               {"LOCAL_WORLD_SIZE", "2"},
                               {"MASTER_ADDR", "127.0.0.1"},
                               {"MASTER_PORT", "29500"},
                               {"TORCHELASTIC_USE_AGENT_STORE", "True"}};
  expect_place(variables, {kTcp, 1, 2, 1, 2, "127.0.0.1", 29501});
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
  EXPECT_EQ(message_of<ConfigError>([] {
              place({{"RANK", "0"},
                     {"WORLD_SIZE", "2"},
                     {"MASTER_ADDR", "gpu0"},
                     {"MASTER_PORT", "99999999"}});
            }),
            "environment variable MASTER_PORT is 99999999, but ports go from 1 to 65535; set it to "
            "a free port of rank 0's host");
}

}  // namespace
}  // namespace megatron::comm

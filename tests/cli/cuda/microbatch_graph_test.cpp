#include "tests/cli/graph_runs.h"

namespace megatron::cli {
namespace {

class MicrobatchGraphCudaTest : public testing::TestWithParam<GraphCase> {
 protected:
  void SetUp() override {
    if (num_cuda_devices() == 0) GTEST_SKIP() << "no GPU: not run";
  }
};

TEST_P(MicrobatchGraphCudaTest, ReplaysGiveTheSameBits) {
  expect_graph_to_change_nothing(GetParam(), {"--device=cuda", "--deterministic-mode"});
}
INSTANTIATE_TEST_SUITE_P(Runs, MicrobatchGraphCudaTest, testing::ValuesIn(graph_cases()),
                         graph_case_name);

TEST(CudaGraphFlagTest, IsOnUnlessSomethingIsInTheWay) {
  if (num_cuda_devices() == 0) GTEST_SKIP() << "no GPU: not run";
  EXPECT_TRUE(graph_run({"--device=cuda"}).was_recorded);
  EXPECT_FALSE(graph_run({"--device=cuda", "--no-cuda-graph"}).was_recorded);
  EXPECT_FALSE(graph_run({"--device=cuda", "--timing-log-level=2"}).was_recorded);
}

}  // namespace
}  // namespace megatron::cli

#include <gmock/gmock.h>

#include "tests/cli/graph_runs.h"
#include "tests/support/captured_output.h"

namespace megatron::cli {
namespace {

using testing::HasSubstr;
using testing::Not;

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

// Of such a length cuDNN before 9.16 copies from the host's memory: then training says so, names
// what to do, and goes on with the same bits.
TEST(CudaGraphFlagTest, ALengthThatCannotBeRecordedIsRefusedByName) {
  if (num_cuda_devices() == 0) GTEST_SKIP() << "no GPU: not run";
  const std::vector<std::string> flags = {"--device=cuda", "--bf16", "--deterministic-mode",
                                          "--attention-dropout=0", "--hidden-dropout=0"};
  CapturedStderr captured_err;
  const GraphRun got = graph_run(flags, true);
  const std::string said = captured_err.text();
  if (got.was_recorded) {
    EXPECT_THAT(said, Not(HasSubstr("--cuda-graph")));
  } else {
    EXPECT_THAT(said,
                HasSubstr("warning: --cuda-graph: cannot record a microbatch, training continues "
                          "without: a library copies from host memory, which would change before "
                          "the graph runs (cuDNN before 9.16 does if a sequence is no "
                          "multiple of 128: use such a length, a newer cuDNN or --no-cuda-graph)"));
  }
  expect_same_bits(got, graph_run(flags, false));
}

}  // namespace
}  // namespace megatron::cli

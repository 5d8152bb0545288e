#include <gmock/gmock.h>

#include "tests/cli/graph_runs.h"

namespace megatron::cli {
namespace {

using testing::StartsWith;

// The CPU records nothing, but its microbatches pass through the places that a record reads.
class MicrobatchGraphTest : public testing::TestWithParam<GraphCase> {};

TEST_P(MicrobatchGraphTest, FixedPlacesGiveTheSameBits) {
  expect_graph_to_change_nothing(GetParam(), {"--device=cpu"});
}
INSTANTIATE_TEST_SUITE_P(Runs, MicrobatchGraphTest, testing::ValuesIn(graph_cases()),
                         graph_case_name);

TEST(WhyNoGraphTest, LayersCommunicateOrAreTimed) {
  TrainingArgs args;
  EXPECT_EQ(why_no_graph(args), std::nullopt);
  args.parallel.data_parallel_size = 2;
  args.parallel.overlap_grad_reduce = true;
  EXPECT_EQ(why_no_graph(args), std::nullopt);  // between the first and the last microbatch
  args.parallel.tensor_model_parallel_size = 2;
  EXPECT_THAT(why_no_graph(args).value(), StartsWith("--tensor-model-parallel-size 2: "));
  args.parallel.pipeline_model_parallel_size = 4;
  EXPECT_THAT(why_no_graph(args).value(), StartsWith("--pipeline-model-parallel-size 4: "));

  TrainingArgs offloaded;
  offloaded.transformer.checkpoint_in_cpu = true;
  EXPECT_EQ(why_no_graph(offloaded), std::nullopt);  // nothing is recomputed
  offloaded.transformer.recompute_granularity = RecomputeGranularity::kFull;
  EXPECT_THAT(why_no_graph(offloaded).value(), StartsWith("--checkpoint-in-cpu: "));

  TrainingArgs away;
  away.transformer.cpu_offloading_num_layers = 3;
  EXPECT_THAT(why_no_graph(away).value(), StartsWith("--cpu-offloading-num-layers 3: "));

  TrainingArgs timed;
  timed.training.timing_log_level = 2;
  EXPECT_THAT(why_no_graph(timed).value(), StartsWith("--timing-log-level 2: "));
}

}  // namespace
}  // namespace megatron::cli

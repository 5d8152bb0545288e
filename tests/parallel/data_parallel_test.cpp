#include "megatron/parallel/data_parallel.h"

#include <gmock/gmock.h>

#include <vector>

#include "megatron/comm/threads.h"
#include "megatron/core/error.h"

namespace megatron {
namespace {

using testing::ElementsAre;

Tensor scalar(float value) { return tensor_of(std::vector<float>{value}, {}); }

TEST(DataParallelTest, AveragesLosses) {
  comm::run_ranks(3, [](const comm::Group& data) {
    const auto rank = static_cast<float>(data.rank());
    const std::vector<Tensor> losses = {scalar(rank), scalar(10 + 3 * rank)};
    const Tensor mean = avg_losses_across_data_parallel_group(losses, data);
    EXPECT_THAT(mean.span<float>(), ElementsAre(testing::FloatEq(1), testing::FloatEq(13)));
    EXPECT_EQ(losses[0].item(), rank) << "the losses themselves stay";
  });
}

TEST(DataParallelTest, NeedsALoss) {
  EXPECT_THROW(avg_losses_across_data_parallel_group({}, comm::Group{}), ShapeError);
}

TEST(DataParallelTest, GathersInRankOrder) {
  comm::run_ranks(2, [](const comm::Group& data) {
    const auto rank = static_cast<float>(data.rank());
    EXPECT_THAT(gather_across_data_parallel_groups(scalar(rank), data).span<float>(),
                ElementsAre(0, 1));
    const Tensor rows = tensor_of(std::vector<float>{rank, rank + 10}, {1, 2});
    const Tensor all = gather_across_data_parallel_groups(rows, data);
    EXPECT_EQ(all.shape(), Shape({2, 2}));
    EXPECT_THAT(all.span<float>(), ElementsAre(0, 10, 1, 11));
  });
}

}  // namespace
}  // namespace megatron

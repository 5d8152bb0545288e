#include "megatron/comm/dry_group.h"

#include <gtest/gtest.h>

#include <array>
#include <vector>

#include "megatron/comm/collectives.h"
#include "megatron/comm/texts.h"

namespace megatron::comm {
namespace {

TEST(DryGroupTest, IsOneRankOfMany) {
  const Group world = dry_group(3000, 4096);
  EXPECT_EQ(world.rank(), 3000);
  EXPECT_EQ(world.size(), 4096);
  const Group pair = world.subgroup("pair", std::array{17, 3000});
  EXPECT_EQ(pair.rank(), 1);
  EXPECT_EQ(pair.size(), 2);
  EXPECT_EQ(dry_group(0, 1).size(), 1);
}

TEST(DryGroupTest, OfHostMemoryItKnowsItsOwn) {
  const Group world = dry_group(1, 3);
  std::array<float, 2> own = {1, 2};
  all_reduce({own.data(), {2}, DType::kFloat32}, Reduce::kSum, world, Stream{});
  EXPECT_EQ(own[1], 2);
  std::array<float, 6> all{};
  all_gather({all.data(), {6}, DType::kFloat32}, {own.data(), {2}, DType::kFloat32}, world,
             Stream{});
  EXPECT_EQ(all[5], 2);
  EXPECT_EQ(gathered_texts("ours", world), (std::vector<std::string>{"ours", "ours", "ours"}));
  barrier(world);
}

TEST(DryGroupTest, NothingTravelsBetweenDryDevices) {
  const Group world = dry_group(0, 2);
  for (const DeviceType type : {DeviceType::kCpu, DeviceType::kCuda}) {
    const Stream stream{{.type = type, .index = 0, .is_dry = true}};
    // Nobody looks at the elements.
    const TensorView x{nullptr, {4}, DType::kFloat32};
    const TensorView both{nullptr, {8}, DType::kFloat32};
    all_reduce(x, Reduce::kSum, world, stream);
    start_all_gather(both, x, world, stream).wait();
    start_reduce_scatter(x, both, Reduce::kSum, world, stream).wait();
    const Transfer transfer{x, 1, false};
    start_exchange({&transfer, 1}, world, stream).wait();
  }
}

}  // namespace
}  // namespace megatron::comm

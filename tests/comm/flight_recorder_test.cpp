#include "megatron/comm/flight_recorder.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <vector>

#include "megatron/comm/collectives.h"
#include "megatron/comm/threads.h"
#include "megatron/comm/transport.h"
#include "tests/comm/values.h"

namespace megatron::comm {
namespace {

using testing::HasSubstr;

TEST(FlightRecorderTest, KeepsTheLastCallsInOrder) {
  FlightRecorder recorder;
  EXPECT_EQ(recorder.last(), "no call");
  EXPECT_EQ(recorder.str(), "  no call\n");
  const int64_t num_calls = FlightRecorder::kCapacity + 6;
  for (int64_t i = 0; i < num_calls; ++i) {
    recorder.begin({Operation::kAllGather, DType::kFloat32, i}, "data");
    if (i + 1 < num_calls) recorder.finish(FlightRecorder::State::kDone);
  }
  const std::vector<FlightRecorder::Entry> entries = recorder.entries();
  ASSERT_EQ(entries.size(), static_cast<size_t>(FlightRecorder::kCapacity));
  for (size_t i = 0; i < entries.size(); ++i) {
    EXPECT_EQ(entries[i].sequence, static_cast<int64_t>(i) + 6);
    EXPECT_EQ(entries[i].call.count, entries[i].sequence);
  }
  EXPECT_EQ(entries.front().state, FlightRecorder::State::kDone);
  EXPECT_EQ(entries.back().state, FlightRecorder::State::kUnderWay);
  EXPECT_THAT(recorder.last(), HasSubstr("all_gather(69 x float32) in group data, under way for"));
  EXPECT_THAT(recorder.str(), HasSubstr("all_gather(68 x float32)"));
}

TEST(FlightRecorderTest, SeesTheCallsOfAllGroups) {
  run_ranks(2, [](const Group& world) {
    const std::vector<int> both = {0, 1};
    const Group tensor = world.subgroup("tensor", both);
    std::vector<float> x(3);
    all_reduce(view_of(x), Reduce::kMax, tensor, Stream{});
    barrier(world);
    const std::vector<FlightRecorder::Entry> entries =
        world.transport().context().recorder.entries();
    ASSERT_EQ(entries.size(), 2u);
    EXPECT_EQ(entries[0].call.str(), "all_reduce(max, 3 x float32)");
    EXPECT_EQ(entries[0].group, "tensor");
    EXPECT_EQ(entries[1].call.str(), "barrier");
    EXPECT_EQ(entries[1].group, "world");
  });
}

}  // namespace
}  // namespace megatron::comm

#include "megatron/device/work_graph.h"

#include <gtest/gtest.h>

namespace megatron {
namespace {

TEST(WorkGraphTest, OnTheCpuEachLaunchCallsTheFunction) {
  int calls = 0;
  WorkGraph graph(Stream{}, [&calls] {
    EXPECT_FALSE(is_recording());
    ++calls;
  });
  EXPECT_EQ(calls, 0);
  graph.launch();
  graph.launch();
  EXPECT_EQ(calls, 2);
}

}  // namespace
}  // namespace megatron

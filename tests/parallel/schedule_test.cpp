#include "megatron/parallel/pipeline/schedule.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <string>
#include <utility>

namespace megatron {
namespace {

// "F0 B0" for one chunk, "F0.1 B0.1" for several.
std::string text(const std::vector<PipelineStep>& steps, bool with_chunks) {
  std::string all;
  for (const PipelineStep& step : steps) {
    if (!all.empty()) all += ' ';
    all += (step.pass == Pass::kForward ? 'F' : 'B') + std::to_string(step.microbatch);
    if (with_chunks) all += '.' + std::to_string(step.chunk);
  }
  return all;
}

// Orders of Megatron-LM core_r0.5.0 for four stages and eight microbatches.
TEST(OneForwardOneBackwardTest, IsTheOrderOfMegatron) {
  const auto order = [](int64_t stage) {
    return text(one_forward_one_backward({.stage = stage, .stages = 4, .microbatches = 8}), false);
  };
  EXPECT_EQ(order(0), "F0 F1 F2 F3 B0 F4 B1 F5 B2 F6 B3 F7 B4 B5 B6 B7");
  EXPECT_EQ(order(1), "F0 F1 F2 B0 F3 B1 F4 B2 F5 B3 F6 B4 F7 B5 B6 B7");
  EXPECT_EQ(order(2), "F0 F1 B0 F2 B1 F3 B2 F4 B3 F5 B4 F6 B5 F7 B6 B7");
  EXPECT_EQ(order(3), "F0 B0 F1 B1 F2 B2 F3 B3 F4 B4 F5 B5 F6 B6 F7 B7");
}

TEST(InterleavedTest, IsTheOrderOfMegatron) {
  const auto order = [](int64_t stage) {
    return text(interleaved({.stage = stage, .stages = 4, .chunks = 2, .microbatches = 8}), true);
  };
  EXPECT_EQ(order(0),
            "F0.0 F1.0 F2.0 F3.0 F0.1 F1.1 F2.1 F3.1 F4.0 F5.0 F6.0 B0.1 F7.0 B1.1 F4.1 B2.1 F5.1 "
            "B3.1 F6.1 B0.0 F7.1 B1.0 B2.0 B3.0 B4.1 B5.1 B6.1 B7.1 B4.0 B5.0 B6.0 B7.0");
  EXPECT_EQ(order(1),
            "F0.0 F1.0 F2.0 F3.0 F0.1 F1.1 F2.1 F3.1 F4.0 B0.1 F5.0 B1.1 F6.0 B2.1 F7.0 B3.1 F4.1 "
            "B0.0 F5.1 B1.0 F6.1 B2.0 F7.1 B3.0 B4.1 B5.1 B6.1 B7.1 B4.0 B5.0 B6.0 B7.0");
  EXPECT_EQ(order(2),
            "F0.0 F1.0 F2.0 F3.0 F0.1 F1.1 F2.1 B0.1 F3.1 B1.1 F4.0 B2.1 F5.0 B3.1 F6.0 B0.0 F7.0 "
            "B1.0 F4.1 B2.0 F5.1 B3.0 F6.1 B4.1 F7.1 B5.1 B6.1 B7.1 B4.0 B5.0 B6.0 B7.0");
  EXPECT_EQ(order(3),
            "F0.0 F1.0 F2.0 F3.0 F0.1 B0.1 F1.1 B1.1 F2.1 B2.1 F3.1 B3.1 F4.0 B0.0 F5.0 B1.0 F6.0 "
            "B2.0 F7.0 B3.0 F4.1 B4.1 F5.1 B5.1 F6.1 B6.1 F7.1 B7.1 B4.0 B5.0 B6.0 B7.0");
}

// Runs the plans of all stages against each other: a step runs once what it needs has been made.
// False: they wait for each other forever.
bool completes(int64_t stages, int64_t chunks, int64_t microbatches) {
  std::vector<std::vector<PipelineStep>> plans;
  for (int64_t stage = 0; stage < stages; ++stage) {
    plans.push_back(training_steps({stage, stages, chunks, microbatches}));
  }
  const int64_t pieces = stages * chunks;
  std::map<std::pair<int64_t, int64_t>, int> passes;  // by piece and microbatch: 1 F done, 2 B done
  std::vector<size_t> at(plans.size(), 0);
  for (bool moved = true; moved;) {
    moved = false;
    for (int64_t stage = 0; stage < stages; ++stage) {
      const auto s = static_cast<size_t>(stage);
      if (at[s] == plans[s].size()) continue;
      const PipelineStep& step = plans[s][at[s]];
      const int64_t piece = step.chunk * stages + stage;
      int& done = passes[{piece, step.microbatch}];
      const bool is_forward = step.pass == Pass::kForward;
      const bool is_ready = is_forward ? piece == 0 || passes[{piece - 1, step.microbatch}] >= 1
                                       : done == 1 && (piece == pieces - 1 ||
                                                       passes[{piece + 1, step.microbatch}] == 2);
      if (!is_ready) continue;
      if (done != (is_forward ? 0 : 1)) return false;  // twice, or backward before forward
      done += 1;
      at[s] += 1;
      moved = true;
    }
  }
  return std::all_of(passes.begin(), passes.end(), [](const auto& p) { return p.second == 2; }) &&
         static_cast<int64_t>(passes.size()) == pieces * microbatches;
}

TEST(ScheduleTest, EveryMicrobatchGoesForwardAndBackwardThroughEveryChunk) {
  for (int64_t stages = 1; stages <= 6; ++stages) {
    for (int64_t microbatches = 1; microbatches <= 13; ++microbatches) {
      EXPECT_TRUE(completes(stages, 1, microbatches)) << stages << " x " << microbatches;
    }
  }
  for (int64_t stages = 2; stages <= 5; ++stages) {
    for (int64_t chunks = 2; chunks <= 4; ++chunks) {
      for (int64_t groups = 1; groups <= 4; ++groups) {
        EXPECT_TRUE(completes(stages, chunks, groups * stages))
            << stages << " x " << chunks << " x " << groups;
      }
    }
  }
}

TEST(ScheduleTest, OneForwardOneBackwardKeepsAsManyMicrobatchesAsStagesFollow) {
  for (int64_t stage = 0; stage < 4; ++stage) {
    int64_t in_flight = 0, peak = 0;
    for (const PipelineStep& step : one_forward_one_backward({stage, 4, 1, 8})) {
      in_flight += step.pass == Pass::kForward ? 1 : -1;
      peak = std::max(peak, in_flight);
    }
    EXPECT_EQ(peak, 4 - stage);
    EXPECT_EQ(in_flight, 0);
  }
}

TEST(ScheduleTest, EvaluationIsAllForwardPasses) {
  const std::vector<PipelineStep> steps = evaluation_steps({1, 2, 2, 4});
  EXPECT_EQ(text(steps, true), "F0.0 F1.0 F0.1 F1.1 F2.0 F3.0 F2.1 F3.1");
}

TEST(ScheduleTest, TheBubbleShrinksWithMicrobatchesAndChunks) {
  EXPECT_DOUBLE_EQ(bubble_fraction({0, 4, 1, 8}), 3.0 / 11);
  EXPECT_DOUBLE_EQ(bubble_fraction({0, 4, 2, 8}), 3.0 / 19);
  EXPECT_EQ(bubble_fraction({0, 1, 1, 8}), 0);
}

}  // namespace
}  // namespace megatron

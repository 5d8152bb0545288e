#include "megatron/parallel/pipeline/schedule.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <limits>
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
    all += "FBW"[static_cast<size_t>(step.pass)] + std::to_string(step.microbatch);
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

TEST(ZeroBubbleTest, WeightPassesComeLaterOnLaterStages) {
  const auto order = [](int64_t stage, int64_t chunks, int64_t microbatches) {
    return text(training_steps({stage, chunks == 1 ? 4 : 2, chunks, microbatches, true}),
                chunks > 1);
  };
  EXPECT_EQ(order(0, 1, 5), "F0 F1 F2 F3 B0 W0 F4 B1 W1 B2 W2 B3 W3 B4 W4");
  EXPECT_EQ(order(1, 1, 5), "F0 F1 F2 B0 F3 B1 W0 F4 B2 W1 B3 W2 B4 W3 W4");
  EXPECT_EQ(order(2, 1, 5), "F0 F1 B0 F2 B1 F3 B2 W0 F4 B3 W1 B4 W2 W3 W4");
  EXPECT_EQ(order(3, 1, 5), "F0 B0 F1 B1 F2 B2 F3 B3 W0 F4 B4 W1 W2 W3 W4");
  EXPECT_EQ(order(0, 2, 4),
            "F0.0 F1.0 F0.1 F1.1 F2.0 B0.1 W0.1 F3.0 B1.1 W1.1 F2.1 B0.0 W0.0 F3.1 B1.0 W1.0 "
            "B2.1 W2.1 B3.1 W3.1 B2.0 W2.0 B3.0 W3.0");
  EXPECT_EQ(order(1, 2, 4),
            "F0.0 F1.0 F0.1 B0.1 F1.1 B1.1 F2.0 B0.0 W0.1 F3.0 B1.0 W1.1 F2.1 B2.1 W0.0 F3.1 "
            "B3.1 W1.0 B2.0 W2.1 B3.0 W3.1 W2.0 W3.0");
  EXPECT_EQ(training_steps({.stages = 1, .microbatches = 2, .zero_bubble = true}),
            one_forward_one_backward({.microbatches = 2}));
}

TEST(ZeroBubbleTest, StagesRunFurtherAheadWithMorePendingMicrobatches) {
  const auto order = [](int64_t stage, int64_t max_pending) {
    return text(training_steps({stage, 3, 1, 5, true, max_pending}), false);
  };
  EXPECT_EQ(order(0, 5), "F0 F1 F2 F3 F4 B0 W0 B1 W1 B2 W2 B3 W3 B4 W4");
  EXPECT_EQ(order(1, 5), "F0 F1 F2 B0 F3 B1 F4 B2 W0 B3 W1 B4 W2 W3 W4");
  EXPECT_EQ(order(2, 5), "F0 B0 F1 B1 F2 B2 F3 B3 F4 B4 W0 W1 W2 W3 W4");
  EXPECT_EQ(order(1, 4), "F0 F1 F2 B0 F3 B1 W0 F4 B2 W1 B3 W2 B4 W3 W4");  // a half, rounded up
  EXPECT_EQ(order(1, 3), order(1, 0));
  EXPECT_EQ(order(1, std::numeric_limits<int64_t>::max()),
            "F0 F1 F2 F3 F4 B0 B1 B2 B3 B4 W0 W1 W2 W3 W4");
}

TEST(ScheduleTest, TwoMicrobatchesAreInFlightIfTheyOverlap) {
  const PipelineShape shape{.microbatches = 3, .overlaps_microbatches = true};
  EXPECT_EQ(training_steps(shape), (std::vector<PipelineStep>{{Pass::kForward, 0},
                                                              {Pass::kForward, 1},
                                                              {Pass::kBackward, 0},
                                                              {Pass::kBackward, 1},
                                                              {Pass::kForward, 2},
                                                              {Pass::kBackward, 2}}));
}

TEST(ZeroBubbleTest, KeepsAsManyMicrobatchesAsTheFirstStageWithoutWeightPasses) {
  for (const int64_t chunks : {1, 2, 3}) {
    const auto most_waiting = [&](int64_t stage, bool zero_bubble, Pass until) {
      int64_t waiting = 0, most = 0;
      for (const PipelineStep& step : training_steps({stage, 4, chunks, 16, zero_bubble})) {
        if (step.pass == Pass::kForward) ++waiting;
        if (step.pass == until) --waiting;
        most = std::max(most, waiting);
      }
      EXPECT_EQ(waiting, 0);
      return most;
    };
    for (int64_t stage = 0; stage < 4; ++stage) {
      EXPECT_EQ(most_waiting(stage, true, Pass::kWeight), most_waiting(0, false, Pass::kBackward));
      EXPECT_EQ(most_waiting(stage, true, Pass::kBackward),
                most_waiting(stage, false, Pass::kBackward));
    }
  }
}

TEST(ZeroBubbleTest, KeepsAsManyMicrobatchesAsAllowed) {
  for (int64_t max_pending = 4; max_pending <= 10; ++max_pending) {
    for (int64_t stage = 0; stage < 4; ++stage) {
      int64_t waiting = 0, most = 0;
      for (const PipelineStep& step : training_steps({stage, 4, 1, 16, true, max_pending})) {
        if (step.pass == Pass::kForward) ++waiting;
        if (step.pass == Pass::kWeight) --waiting;
        most = std::max(most, waiting);
      }
      EXPECT_EQ(most, max_pending) << stage;
      EXPECT_EQ(waiting, 0);
    }
  }
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

// The time of an iteration whose forward, backward and weight passes take so long in every chunk;
// without weight passes a backward pass takes their time, too. REQUIRES: microbatches divide.
double time_of(const PipelineShape& shape, const std::array<double, 3>& durations) {
  const int64_t pieces = shape.stages * shape.chunks;
  std::map<std::array<int64_t, 3>, double> done;  // by pass, piece and microbatch
  std::vector<double> now(static_cast<size_t>(shape.stages), 0);
  std::vector<size_t> at(now.size(), 0);
  const auto runs = [&](int64_t stage, const PipelineStep& step) {
    double& time = now[static_cast<size_t>(stage)];
    const int64_t piece = step.chunk * shape.stages + stage;
    const bool turns = step.pass == Pass::kBackward && piece == pieces - 1;
    const bool is_free = step.pass == Pass::kForward ? piece == 0 : step.pass == Pass::kWeight;
    if (!is_free) {
      const bool is_forward = step.pass == Pass::kForward || turns;
      const int64_t from = turns ? piece : piece + (is_forward ? -1 : 1);
      const auto needed = done.find({is_forward ? 0 : 1, from, step.microbatch});
      if (needed == done.end()) return false;
      time = std::max(time, needed->second);
    }
    time += durations[static_cast<size_t>(step.pass)];
    if (!shape.zero_bubble && step.pass == Pass::kBackward) time += durations[2];
    return done.insert({{static_cast<int64_t>(step.pass), piece, step.microbatch}, time}).second;
  };
  for (bool moved = true; moved;) {
    moved = false;
    for (int64_t stage = 0; stage < shape.stages; ++stage) {
      size_t& next = at[static_cast<size_t>(stage)];
      PipelineShape of_stage = shape;
      of_stage.stage = stage;
      const std::vector<PipelineStep> plan = training_steps(of_stage);
      for (; next < plan.size() && runs(stage, plan[next]); ++next) moved = true;
    }
  }
  EXPECT_EQ(static_cast<int64_t>(done.size()),
            pieces * shape.microbatches * (shape.zero_bubble ? 3 : 2));
  return *std::max_element(now.begin(), now.end());
}

TEST(ZeroBubbleTest, WeightPassesShrinkTheBubble) {
  for (int64_t stages = 2; stages <= 6; ++stages) {
    for (const int64_t chunks : {1, 2, 3}) {
      const int64_t microbatches = 2 * stages;
      for (const double weight : {0.5, 0.75, 1.0}) {
        const double busy = static_cast<double>(chunks * microbatches) * 3;
        const auto waits = static_cast<double>(stages - 1);
        const auto idle = [&](bool zero_bubble) {
          return time_of({0, stages, chunks, microbatches, zero_bubble}, {1, 2 - weight, weight}) -
                 busy;
        };
        EXPECT_NEAR(idle(false), waits * 3, 1e-9);
        EXPECT_NEAR(idle(true),
                    waits * (chunks == 1 ? 3 - 2 * weight : std::max(1.0, 3 - 3 * weight)), 1e-9);
      }
      const double time = time_of({0, stages, chunks, microbatches, true}, {1, 1, 1});
      EXPECT_NEAR(bubble_fraction({0, stages, chunks, microbatches, true}),
                  1 - static_cast<double>(3 * chunks * microbatches) / time, 1e-12);
    }
  }
}

TEST(ZeroBubbleTest, MorePendingMicrobatchesShrinkTheBubbleToTheForwardPasses) {
  constexpr int64_t kMicrobatches = 24;
  for (int64_t stages = 2; stages <= 6; ++stages) {
    for (int64_t max_pending = stages; max_pending < 2 * stages; ++max_pending) {
      const PipelineShape shape{0, stages, 1, kMicrobatches, true, max_pending};
      for (const double weight : {0.5, 0.75, 1.0}) {
        const PassTimes times{1, 2 - weight, weight};
        const double time = time_of(shape, {1, times.backward, weight});
        EXPECT_NEAR(bubble_fraction(shape, times), 1 - 3 * kMicrobatches / time, 1e-9)
            << stages << " stages, " << max_pending << " pending, W " << weight;
      }
    }
  }
}

TEST(ZeroBubbleTest, IsNeverSlower) {
  for (int64_t stages = 2; stages <= 6; ++stages) {
    for (int64_t microbatches = 1; microbatches < 9; ++microbatches) {
      EXPECT_LT(time_of({0, stages, 1, microbatches, true}, {1, 1, 1}),
                time_of({0, stages, 1, microbatches, false}, {1, 1, 1}));
    }
    EXPECT_LT(time_of({0, stages, 2, stages, true}, {1, 1, 1}),
              time_of({0, stages, 2, stages, false}, {1, 1, 1}));
  }
}

TEST(ScheduleTest, EvaluationIsAllForwardPasses) {
  const std::vector<PipelineStep> steps = evaluation_steps({1, 2, 2, 4});
  EXPECT_EQ(text(steps, true), "F0.0 F1.0 F0.1 F1.1 F2.0 F3.0 F2.1 F3.1");
  EXPECT_EQ(text(evaluation_steps({1, 2, 1, 3, true}), false), "F0 F1 F2");
}

TEST(ScheduleTest, TheBubbleShrinksWithMicrobatchesAndChunks) {
  EXPECT_DOUBLE_EQ(bubble_fraction({0, 4, 1, 8}), 3.0 / 11);
  EXPECT_DOUBLE_EQ(bubble_fraction({0, 4, 2, 8}), 3.0 / 19);
  EXPECT_EQ(bubble_fraction({0, 1, 1, 8}), 0);
}

}  // namespace
}  // namespace megatron

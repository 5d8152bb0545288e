#pragma once

#include <cstdint>
#include <vector>

// The order of work in a pipeline, as data (Narayanan et al. 2021, arXiv:2104.04473, sec. 2.2).
namespace megatron {

// kWeight: the gradients of the weights, which the backward pass of the microbatch then leaves out.
enum class Pass { kForward, kBackward, kWeight };

struct PipelineStep {
  Pass pass = Pass::kForward;
  int64_t microbatch = 0;
  int64_t chunk = 0;  // of this stage's chunks

  bool operator==(const PipelineStep&) const = default;
};

struct PipelineShape {
  int64_t stage = 0;
  int64_t stages = 1;
  int64_t chunks = 1;  // in each stage
  int64_t microbatches = 1;
  bool zero_bubble = false;  // with weight passes
  // With zero_bubble: microbatches that a stage of one chunk may hold between their forward and
  // their weight passes, at least as many as stages; 0: as many.
  int64_t max_pending = 0;
  // Two microbatches at a time take turns: while collectives of one are under way, the other
  // computes. REQUIRES: one stage of one chunk.
  bool overlaps_microbatches = false;
};

// One forward, one backward: fill, alternate, drain. At most stages - stage microbatches are in
// flight, with max_pending = 1 + k (stages - 1) at most 1 + k (stages - 1 - stage). With one stage
// each microbatch is followed by its backward pass.
// REQUIRES: chunks is 1.
std::vector<PipelineStep> one_forward_one_backward(const PipelineShape& shape);

// The same over several chunks a stage; microbatches take turns in groups of as many as there are
// stages. REQUIRES: microbatches is a multiple of stages.
std::vector<PipelineStep> interleaved(const PipelineShape& shape);

// The steps of a schedule, whose backward passes now leave the gradients of weights to weight
// passes (zero bubble; Qi et al. 2023, arXiv:2401.10241, sec. 2): one follows each backward pass,
// for the backward pass `lag` before it; the others come at the end.
std::vector<PipelineStep> with_weight_passes(const std::vector<PipelineStep>& steps, int64_t lag);

// Two microbatches forward, the two backward. REQUIRES: stages and chunks are 1.
std::vector<PipelineStep> in_pairs(const PipelineShape& shape);

// Whichever of the first two fits the number of chunks, or pairs with overlaps_microbatches. With
// zero_bubble weight passes fill a part of the bubble (ZB-H1; ZB-H2 with max_pending = 2 stages -
// 1), and lag by as much as the memory of the first stage allows: no stage keeps more microbatches
// for its weight passes than the first keeps for its backward passes.
std::vector<PipelineStep> training_steps(const PipelineShape& shape);

// All forward passes and nothing else, in the order of training_steps().
std::vector<PipelineStep> evaluation_steps(const PipelineShape& shape);

// Times of a chunk's passes, in any unit; `backward` is that without the gradients of weights.
struct PassTimes {
  double forward = 1;
  double backward = 1;
  double weight = 1;
};

// The fraction of an iteration that a stage idles (pipeline bubble) if all chunks take equally
// long. A stage idles for stages - 1 times
//   F + B + W                                                without zero_bubble,
//   max(F, F + B - W - W (max_pending - stages) / (stages - 1))  with it,
//   max(F, F + B - 2 W)                                      with it and several chunks.
// The optimizer's step, which waits for all stages, is why F remains.
double bubble_fraction(const PipelineShape& shape, const PassTimes& times = {});

}  // namespace megatron

#include "megatron/parallel/pipeline/schedule.h"

#include <algorithm>
#include <iterator>

#include "megatron/core/error.h"

namespace megatron {

namespace {

// With zero_bubble: microbatches that a stage may hold. More than let every stage run all forward
// passes first change nothing.
int64_t pending(const PipelineShape& shape) {
  if (shape.max_pending == 0) return shape.stages;
  return std::min(shape.max_pending, (shape.stages - 1) * shape.microbatches + 1);
}

// Forward passes before those that take turns with backward passes, if there are enough
// microbatches. REQUIRES: chunks is 1.
int64_t warmup_of(const PipelineShape& shape) {
  const int64_t after = shape.stages - shape.stage - 1;
  if (!shape.zero_bubble || shape.stages == 1) return after;
  // Each stage runs ahead of the next one by an equal share, rounded up.
  return (after * (pending(shape) - 1) + shape.stages - 2) / (shape.stages - 1);
}

}  // namespace

std::vector<PipelineStep> one_forward_one_backward(const PipelineShape& shape) {
  const int64_t warmup = std::min(warmup_of(shape), shape.microbatches);
  std::vector<PipelineStep> steps;
  for (int64_t i = 0; i < warmup; ++i) steps.push_back({Pass::kForward, i});
  for (int64_t i = warmup; i < shape.microbatches; ++i) {
    steps.push_back({Pass::kForward, i});
    steps.push_back({Pass::kBackward, i - warmup});
  }
  for (int64_t i = shape.microbatches - warmup; i < shape.microbatches; ++i) {
    steps.push_back({Pass::kBackward, i});
  }
  return steps;
}

std::vector<PipelineStep> interleaved(const PipelineShape& shape) {
  const int64_t stages = shape.stages;
  const int64_t chunks = shape.chunks;
  const int64_t microbatches = shape.microbatches;
  invariant(microbatches % stages == 0,
            "an interleaved schedule has a multiple of `stages` microbatches");
  const int64_t total = microbatches * chunks;
  const int64_t round = stages * chunks;  // of each group of `stages` microbatches
  const auto step = [&](Pass pass, int64_t k) -> PipelineStep {
    const int64_t chunk = k % round / stages;
    return {pass, k / round * stages + k % stages,
            pass == Pass::kForward ? chunk : chunks - 1 - chunk};
  };
  const int64_t warmup =
      microbatches == stages
          ? total
          : std::min(2 * (stages - shape.stage - 1) + (chunks - 1) * stages, total);
  std::vector<PipelineStep> steps;
  for (int64_t k = 0; k < warmup; ++k) steps.push_back(step(Pass::kForward, k));
  for (int64_t k = warmup; k < total; ++k) {
    steps.push_back(step(Pass::kForward, k));
    steps.push_back(step(Pass::kBackward, k - warmup));
  }
  for (int64_t k = total - warmup; k < total; ++k) steps.push_back(step(Pass::kBackward, k));
  return steps;
}

std::vector<PipelineStep> with_weight_passes(const std::vector<PipelineStep>& steps, int64_t lag) {
  std::vector<PipelineStep> backward;
  std::ranges::copy_if(steps, std::back_inserter(backward),
                       [](const PipelineStep& step) { return step.pass == Pass::kBackward; });
  std::vector<PipelineStep> all;
  all.reserve(steps.size() + backward.size());
  size_t next = 0;
  const auto add_weight_pass = [&] {
    all.push_back({Pass::kWeight, backward[next].microbatch, backward[next].chunk});
    ++next;
  };
  int64_t num_backward = 0;
  for (const PipelineStep& step : steps) {
    all.push_back(step);
    if (step.pass == Pass::kBackward && ++num_backward > lag) add_weight_pass();
  }
  while (next < backward.size()) add_weight_pass();
  return all;
}

std::vector<PipelineStep> in_pairs(const PipelineShape& shape) {
  std::vector<PipelineStep> steps;
  for (int64_t first = 0; first < shape.microbatches; first += 2) {
    const int64_t end = std::min(first + 2, shape.microbatches);
    for (const Pass pass : {Pass::kForward, Pass::kBackward}) {
      for (int64_t i = first; i < end; ++i) steps.push_back({pass, i});
    }
  }
  return steps;
}

std::vector<PipelineStep> training_steps(const PipelineShape& shape) {
  if (shape.overlaps_microbatches) return in_pairs(shape);
  const bool is_interleaved = shape.chunks > 1;
  std::vector<PipelineStep> steps =
      is_interleaved ? interleaved(shape) : one_forward_one_backward(shape);
  if (!shape.zero_bubble || shape.stages == 1) return steps;
  // As many forward passes fewer than on the first stage come before the first backward pass.
  return with_weight_passes(
      steps, is_interleaved ? 2 * shape.stage : pending(shape) - 1 - warmup_of(shape));
}

std::vector<PipelineStep> evaluation_steps(const PipelineShape& shape) {
  std::vector<PipelineStep> steps = training_steps(shape);
  std::erase_if(steps, [](const PipelineStep& step) { return step.pass != Pass::kForward; });
  return steps;
}

double bubble_fraction(const PipelineShape& shape, const PassTimes& times) {
  const auto [forward, backward, weight] = times;
  const auto others = static_cast<double>(shape.stages - 1);
  const double all = forward + backward + weight;
  double idle = others * all;
  if (shape.zero_bubble && shape.chunks > 1) {
    idle = others * std::max(forward, forward + backward - 2 * weight);
  } else if (shape.zero_bubble) {
    const auto more = static_cast<double>(pending(shape) - shape.stages);
    idle = std::max(others * forward, others * (forward + backward - weight) - more * weight);
  }
  return idle / (static_cast<double>(shape.chunks * shape.microbatches) * all + idle);
}

}  // namespace megatron

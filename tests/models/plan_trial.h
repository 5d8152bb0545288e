#pragma once

#include <gtest/gtest.h>

#include <cstdint>

#include "megatron/autograd/variable.h"
#include "megatron/device/allocator.h"
#include "megatron/device/random.h"
#include "megatron/models/plan/training_plan.h"
#include "megatron/optim/flat_parameters.h"
#include "megatron/optim/optimizer.h"
#include "megatron/parallel/fp8_scaling.h"
#include "megatron/parallel/pipeline/executor.h"
#include "tests/support/device_under_test.h"

// The plan of a small model against what the allocator counted while it trained.
namespace megatron {

struct PlanTrial {
  DryIteration plan;
  MemoryStats before;
  MemoryStats after;

  // Bytes of a category at its peak, beyond those of other tests.
  int64_t taken(MemoryCategory category) const {
    const auto at = static_cast<size_t>(category);
    return after.peak_by_category[at] - before.by_category[at];
  }
  int64_t planned(MemoryCategory category) const {
    return plan.stats.peak_by_category[static_cast<size_t>(category)];
  }
  // The plan is at most this fraction away from what was taken.
  void expect_within(double fraction) const {
    for (const MemoryCategory category :
         {MemoryCategory::kParameters, MemoryCategory::kGradients, MemoryCategory::kOptimizer,
          MemoryCategory::kActivations}) {
      const auto took = static_cast<double>(taken(category));
      EXPECT_NEAR(static_cast<double>(planned(category)), took, fraction * took)
          << name_of(category);
    }
  }
};

// Two iterations of two microbatches with Adam. `losses_of(model, random, seed)` computes the
// losses of a microbatch of `batch` samples, whose backward passes start with `seed`.
template <class Model, class LossesOf>
PlanTrial plan_trial(const TransformerConfig& config, int64_t batch, const LossesOf& losses_of) {
  PlanTrial trial;
  ParallelConfig parallel;
  parallel.accumulate_allreduce_grads_in_fp32 = true;
  const OptimizerConfig adam;
  const Stream stream = stream_under_test();
  CachingAllocator& allocator = allocator_of(stream.device);
  allocator.empty_cache();
  trial.before = allocator.stats();
  const Model model(config, stream);
  initialize(model, 1);
  FlatParameters flat(optimized_parameters(model), {.accumulate_allreduce_grads_in_fp32 = true});
  allocator.empty_cache();
  Optimizer optimizer(flat, adam);
  Fp8Scaling fp8({&model}, config.fp8, {}, stream);
  allocator.reset_peaks();
  RandomState random(1);
  const Tensor seed = full({}, 1, DType::kFloat32, stream);
  for (int iteration = 0; iteration < 2; ++iteration) {
    flat.zero_grads();
    fp8.quantize_weights();
    for (int microbatch = 0; microbatch < 2; ++microbatch) {
      run_backward({.activations = {}, .losses = losses_of(model, random, seed)}, {}, seed);
    }
    fp8.finish_iteration(iteration);
    optimizer.step({.lr = 1e-3, .weight_decay = 0.1});
  }
  trial.after = allocator.stats();
  trial.plan = dry_iteration({.transformer = config,
                              .parallel = parallel,
                              .optimizer = adam,
                              .micro_batch_size = batch,
                              .num_microbatches = 2,
                              .device = stream.device.type},
                             0);
  EXPECT_EQ(trial.plan.num_parameters, flat.num_elements());
  EXPECT_EQ(trial.plan.num_parameters, num_model_parameters(config));
  return trial;
}

// Token ids of a microbatch.
inline Tensor planned_ids(const TransformerConfig& config, int64_t batch) {
  const Shape shape = {batch, config.seq_length};
  return tensor_of(std::vector<int64_t>(static_cast<size_t>(shape.numel()), 3), shape);
}

}  // namespace megatron

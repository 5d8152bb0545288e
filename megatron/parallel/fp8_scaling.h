#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "megatron/nn/fp8_layer.h"
#include "megatron/nn/fp8_stacked_weight.h"
#include "megatron/parallel/fp8_gather.h"
#include "megatron/parallel/parallel_context.h"

namespace megatron {

// Keeps the FP8 layers of a rank ready while their weights change: the weights in FP8, and the
// scales of delayed scaling (Micikevicius et al. 2022, arXiv:2209.05433, sec. 3). The amax of an
// iteration is the largest of all microbatches and of all ranks that have parts or copies of the
// layer, so that scales do not depend on the layout. Experts have no delayed scales. Has no effect
// on a model without FP8.
//
// Nothing waits for the device, except the first quantize_weights().
class Fp8Scaling {
 public:
  // The layers of `chunks`, which must outlive it. With `gather` the data-parallel ranks gather
  // weights in FP8; else a rank rounds its layers' parameters.
  Fp8Scaling(const std::vector<const Module*>& chunks, const Fp8Config& config,
             const ParallelContext& parallel, Stream stream,
             std::unique_ptr<Fp8Gather> gather = nullptr);

  // To be called between an update of the weights, or a load, and the next forward pass.
  void quantize_weights();
  // To be called after the last backward pass of an iteration, counted from 0.
  void finish_iteration(int64_t iteration);

  // True if all further microbatches run the same kernels. With delayed scaling those of the first
  // iteration also measure amax, because there is no history yet.
  bool is_settled() const { return layers_.empty() || !is_delayed_ || has_history_; }

 private:
  void use_history();

  const Fp8Config config_;
  const bool is_delayed_;
  const std::vector<comm::Group> groups_;  // one after the other, they reach all ranks of a layer
  const Stream stream_;
  std::vector<const Fp8Layer*> layers_;
  std::vector<const Fp8StackedWeight*> experts_;
  std::unique_ptr<Fp8Gather> gather_;  // may be null
  Tensor amax_;                        // [layers, 3]: of the current iteration
  Tensor states_;                      // [layers, 2] int64: kernels::Fp8LayerState
  bool has_looked_for_history_ = false;
  bool has_history_ = false;
};

}  // namespace megatron

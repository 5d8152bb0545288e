#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "megatron/comm/collectives.h"
#include "megatron/optim/divided_gradients.h"
#include "megatron/optim/divided_parameters.h"
#include "megatron/optim/flat_parameters.h"
#include "megatron/optim/tied_parameters.h"

namespace megatron {

struct GradientReductionOptions {
  // Reduce a bucket as soon as the backward passes have completed it, beside the remaining passes.
  bool overlap_grad_reduce = false;
  // With the distributed optimizer: gather parameters beside the next forward pass. The first use
  // of a parameter waits for its bucket.
  bool overlap_param_gather = false;
};

// Reduces the gradients of an iteration to those of the whole batch, bucket by bucket: sums over
// ranks with partial sums, over the pipeline stages with a tied parameter, over the ranks that
// update shares of its buffer, and over those that have copies of a share. The loss is already
// divided by the number of microbatches of all ranks. Ranks that update shares of a buffer
// (FlatParametersOptions) get the reduced gradients of their share, and parameters are gathered
// after the update.
//
// Buckets of divided gradients and parameters (FlatParametersOptions) are left to DividedGradients
// and DividedParameters, which learn here what ops do.
class GradientReduction {
 public:
  // `parameters` must outlive it. Every rank calls it: pipeline stages compare their tied
  // parameters.
  GradientReduction(FlatParameters& parameters, const comm::Group& pipeline,
                    const GradientReductionOptions& options);
  ~GradientReduction();
  GradientReduction(const GradientReduction&) = delete;
  GradientReduction& operator=(const GradientReduction&) = delete;

  // Call before the first backward pass of an iteration of num_microbatches microbatches. If passes
  // before the last microbatch were replayed (training/microbatch_graph.h), call again with 1
  // before the last one, because replays do not report their uses.
  void begin(int64_t num_microbatches);
  // True if the passes of microbatch `microbatch` of `num_microbatches`, run in order, neither wait
  // for parameters nor start a reduction.
  bool is_quiet(int64_t microbatch, int64_t num_microbatches) const;
  // Call after the last backward pass. Ordered with the stream's work.
  void finish();
  // Call after the update: every rank gets the parameters that others updated, bucket by bucket in
  // the order of the forward pass. With overlap_param_gather only starts the gathers. Fp8Gather has
  // those in FP8.
  void gather_parameters();
  // Waits for gathers that gather_parameters() has started: from then on every rank has all
  // parameters that are not divided. Ordered with the stream's work.
  void finish_gathers();

  const std::vector<TiedParameter>& tied() const { return tied_; }

 private:
  struct Bucket {
    size_t buffer = 0;
    FlatSpan span;
    bool has_divided_gradients = false;
    bool waits = false;       // other sums come first, so finish() reduces it
    int64_t num_uses = 0;     // ops that add to it in one microbatch; 0: unknown
    int64_t uses = 0;         // in this iteration
    bool is_reduced = false;  // or the reduction is under way
    comm::Pending pending;
    bool is_gathered = true;  // parameters are complete; else `gathering` is pending
    comm::Pending gathering;
  };

  void add_buckets(size_t buffer);
  // Ops of parameters in divided buckets report to the two classes below.
  void watch_divided(const FlatBuffer& buffer, size_t first_bucket);
  void start(Bucket& bucket);
  void used(size_t bucket);
  void wait_for_parameters(Bucket& bucket);

  FlatParameters& parameters_;
  const GradientReductionOptions options_;
  const std::vector<TiedParameter> tied_;
  std::vector<Bucket> buckets_;  // except those that DividedParameters gathers
  std::optional<DividedGradients> divided_gradients_;
  std::optional<DividedParameters> divided_parameters_;
  int64_t num_microbatches_ = 0;
};

}  // namespace megatron

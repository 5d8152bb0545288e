#pragma once

#include <cstdint>
#include <vector>

#include "megatron/comm/collectives.h"
#include "megatron/optim/flat_parameters.h"
#include "megatron/parallel/parallel_context.h"

namespace megatron {

struct GradientReductionOptions {
  // Every data-parallel rank updates its share of the parameters (FlatParametersOptions): gradients
  // are reduced to it, and parameters are gathered after the update.
  bool use_distributed_optimizer = false;
  // A bucket is reduced as soon as the backward passes have completed it, beside those that remain.
  bool overlap_grad_reduce = false;
  // With the distributed optimizer: parameters are gathered beside the next forward pass, and
  // whoever looks at one first waits for its bucket.
  bool overlap_param_gather = false;
};

// Makes the gradients of an iteration those of the whole batch, bucket by bucket: sums over the
// ranks that saw parts of the sequence, over the two stages that have tied embeddings, and over
// data-parallel ranks. The loss is already divided by all microbatches of all ranks.
class GradientReduction {
 public:
  // Both must outlive it.
  GradientReduction(FlatParameters& parameters, const ParallelContext& parallel,
                    const GradientReductionOptions& options);
  ~GradientReduction();
  GradientReduction(const GradientReduction&) = delete;
  GradientReduction& operator=(const GradientReduction&) = delete;

  // Before the first backward pass of an iteration of so many microbatches. Once more before the
  // last of them, with 1, if passes before it were replayed (training/microbatch_graph.h): nobody
  // has seen those add to a gradient.
  void begin(int64_t num_microbatches);
  // Do the passes of this microbatch, one after the other of so many, neither wait for parameters
  // nor start a sum?
  bool is_quiet(int64_t microbatch, int64_t num_microbatches) const;
  // After the last backward pass, in the order of the stream's work.
  void finish();
  // After the update: every rank gets the parameters that others updated, bucket by bucket in the
  // order of the forward pass. With overlap_param_gather they are on their way on return.
  void gather_parameters();

 private:
  struct Bucket {
    size_t buffer = 0;
    FlatSpan span;
    bool waits = false;       // other sums come first: reduced in finish()
    int64_t num_uses = 0;     // ops that add to it in one microbatch; 0: not known yet
    int64_t uses = 0;         // in this iteration
    bool is_reduced = false;  // or under way
    comm::Pending pending;
    bool is_gathered = true;  // its parameters are here; otherwise `gathering` brings them
    comm::Pending gathering;
  };

  void start(Bucket& bucket);
  void used(size_t bucket);
  void wait_for_parameters(Bucket& bucket);

  FlatParameters& parameters_;
  const ParallelContext& parallel_;
  const GradientReductionOptions options_;
  std::vector<Bucket> buckets_;
  int64_t num_microbatches_ = 0;
};

}  // namespace megatron

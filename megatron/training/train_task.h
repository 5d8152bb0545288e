#pragma once

#include <string>
#include <utility>
#include <vector>

#include "megatron/autograd/variable.h"
#include "megatron/data/split.h"

namespace megatron {

// The tensors of a microbatch, in an order of the task's choice; undefined where there is nothing.
using Microbatch = std::vector<Tensor>;

// What a chunk of the model makes of a microbatch.
struct MicrobatchOutput {
  // Where the model ends the loss to differentiate, fp32 []: the mean over what counts. Elsewhere
  // the activations for the next chunk.
  Variable output;
  // With a loss: "lm loss", ..., fp32 []. The same names in every microbatch.
  std::vector<std::pair<std::string, Tensor>> logged = {};
};

// What is trained: the meeting point of the training loop, which knows no model, and a model, which
// knows no loop. Subclass it to train something else (examples/custom_loss).
class TrainTask {
 public:
  virtual ~TrainTask() = default;

  // Is there data for the split? get_batch() is never called for a split without.
  virtual bool has_split(Split split) const = 0;

  // What one of this stage's chunks (0 without an interleaved pipeline) reads of its next
  // microbatch of the split, in the order of the sampler: on the host, and with everything checked
  // that only the host can check. Throws what the data throws.
  virtual Microbatch get_batch(Split split, int64_t chunk) = 0;

  // Runs the chunk on such a microbatch, which is on the device of the model now; in grad mode when
  // it is to be trained on. `activations` are those of the chunk before, undefined where the model
  // begins.
  //
  // The same work for every microbatch of equal shapes: on a GPU it may be called for one and its
  // kernels repeated for others, whose tensors are put in the same places (--cuda-graph).
  virtual MicrobatchOutput forward_step(Split split, int64_t chunk, const Microbatch& batch,
                                        const Variable& activations) = 0;
};

}  // namespace megatron

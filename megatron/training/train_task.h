#pragma once

#include <string>
#include <utility>
#include <vector>

#include "megatron/autograd/variable.h"
#include "megatron/data/split.h"

namespace megatron {

// What a microbatch gives: the loss to differentiate and the values to log, all scalars.
struct MicrobatchLoss {
  Variable loss;  // fp32 []: mean over what counts
  // "lm loss", ...: fp32 []. The same names in every microbatch.
  std::vector<std::pair<std::string, Tensor>> logged;
};

// What is trained: the meeting point of the training loop, which knows no model, and a model, which
// knows no loop. Subclass it to train something else (examples/custom_loss).
class TrainTask {
 public:
  virtual ~TrainTask() = default;

  // Is there data for the split? forward_step() is never called for a split without.
  virtual bool has_split(Split split) const = 0;

  // Takes the next microbatch of the split, in the order of its sampler, and computes its loss; in
  // grad mode when it is to be trained on. Throws what the data throws.
  virtual MicrobatchLoss forward_step(Split split) = 0;
};

}  // namespace megatron

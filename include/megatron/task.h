#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "megatron/data/gpt_batch.h"
#include "megatron/data/sample_dataset.h"
#include "megatron/data/split.h"
#include "megatron/tensor.h"

namespace megatron::api {

// The optimizer's treatment of a parameter.
struct ParameterOptions {
  bool has_weight_decay = true;  // by default biases and norms have none
  double lr_mult = 1.0;          // multiplies the learning rate
};

// Inputs of a task's own loss.
enum class LossInputs {
  kNone,         // the task has no loss of its own
  kTokenLosses,  // the cross-entropy of each token, fp32 [s, b]
  kLogits,       // the logits of the whole vocabulary, [s, b, v] in the model's dtype
};

// A microbatch at the head of the model. The tensors are on the model's device.
struct LossInput {
  Tensor values;     // of LossInputs
  Tensor tokens;     // [b, s] int64
  Tensor labels;     // [b, s] int64
  Tensor loss_mask;  // [b, s] fp32
  Split split = Split::kTrain;
  bool wants_gradient = false;
};

struct LossResult {
  double loss = 0;
  Tensor gradient = {};  // of the loss by the values, of their shape; fp32 or their dtype
  // Further numbers for the log, the same names in every microbatch.
  std::vector<std::pair<std::string, double>> logged = {};
};

// Changes of a training, most of them of a GPT's (see Trainer). Each function's default changes
// nothing.
class Task {
 public:
  virtual ~Task() = default;

  // At least `num_samples` samples of `tokens` tokens for a split: the inputs, and one more,
  // because labels are one step later. Null: the data of the settings.
  virtual std::shared_ptr<const SampleDataset> samples(Split split, int64_t num_samples,
                                                       int64_t tokens) const;

  // Changes a microbatch of whole sequences on the host before it is used. The loss is
  //   sum(loss_mask * token losses) / loss_divisor,
  // so labels, weights and the divisor define it. Threads that read ahead call this concurrently.
  virtual void adjust_batch(GptBatch& batch, Split split) const;

  // A loss of the task's own, in place of the one above. The iteration minimizes its mean over the
  // microbatches. Every tensor-parallel rank of the last stage calls it with the same values and
  // returns the same.
  virtual LossInputs loss_inputs() const { return LossInputs::kNone; }
  virtual LossResult loss(const LossInput& input) const;

  // The name of the loss in the log.
  virtual std::string loss_name() const { return "lm loss"; }

  // Forms what other systems call parameter groups.
  virtual void adjust_parameter(std::string_view name, std::span<const int64_t> shape,
                                ParameterOptions& options) const;
};

}  // namespace megatron::api

#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>

#include "megatron/data/gpt_batch.h"
#include "megatron/data/sample_dataset.h"
#include "megatron/data/split.h"

namespace megatron::api {

// The optimizer's treatment of a parameter.
struct ParameterOptions {
  bool has_weight_decay = true;  // by default biases and norms have none
  double lr_mult = 1.0;          // multiplies the learning rate
};

// Changes of a GPT's training. Each function's default changes nothing.
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

  // The name of the loss in the log.
  virtual std::string loss_name() const { return "lm loss"; }

  // Forms what other systems call parameter groups.
  virtual void adjust_parameter(std::string_view name, std::span<const int64_t> shape,
                                ParameterOptions& options) const;
};

}  // namespace megatron::api

#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "megatron/comm/group.h"
#include "megatron/training/console_log.h"
#include "megatron/training/train_task.h"

namespace megatron {

// Sums of the logged values, and of the microbatches' weights if they have any, kept on their
// device, so that no microbatch waits for them. Pipeline stages without a loss log nothing.
class LossSums {
 public:
  void add(const MicrobatchOutput& microbatch);
  // Adds the sums of ranks with other microbatches.
  void reduce(const comm::Group& data);

  const std::vector<std::string>& names() const { return names_; }
  // fp32 [names], or [names + 1] with the sum of weights; undefined if nothing is logged.
  const Tensor& sums() const { return sums_; }
  // The sum of weights, fp32 [1]; undefined if there are none.
  Tensor weight() const;

  // See means_of(). Waits for the device.
  NamedValues means(int64_t count) const;

 private:
  std::vector<std::string> names_;
  Tensor sums_;
};

// Means over `count` microbatches, or by their weights.   sums: LossSums::sums()
NamedValues means_of(const std::vector<std::string>& names, std::span<const float> sums,
                     int64_t count);

// With --calculate-per-token-loss: what divides the sum of a microbatch's losses, the number of
// positions, and MicrobatchOutput::weight. Both fp32 [], on the host, like the mask.
struct WeighedTokens {
  Tensor divisor;
  Tensor weight;
};
WeighedTokens weighed_tokens(const Tensor& loss_mask);

}  // namespace megatron

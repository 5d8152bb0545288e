#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "megatron/comm/group.h"
#include "megatron/training/console_log.h"
#include "megatron/training/train_task.h"

namespace megatron {

// Sums of the logged values, kept on their device, so that no microbatch waits for them. Pipeline
// stages without a loss log nothing.
class LossSums {
 public:
  void add(const MicrobatchOutput& microbatch);
  // Adds the sums of ranks with other microbatches.
  void reduce(const comm::Group& data);

  const std::vector<std::string>& names() const { return names_; }
  // fp32 [names]; undefined if nothing is logged.
  const Tensor& sums() const { return sums_; }

  // Means over `count` microbatches. Waits for the device.
  NamedValues means(int64_t count) const;

 private:
  std::vector<std::string> names_;
  Tensor sums_;
};

NamedValues means_of(const std::vector<std::string>& names, std::span<const float> sums,
                     int64_t count);

}  // namespace megatron

#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "megatron/comm/group.h"
#include "megatron/training/console_log.h"
#include "megatron/training/train_task.h"

namespace megatron {

// Sums of the logged values, kept on their device so that a microbatch never waits for one. Nothing
// is logged on pipeline stages that have no loss.
class LossSums {
 public:
  void add(const MicrobatchOutput& microbatch);
  // Adds those of the ranks that saw other microbatches.
  void reduce(const comm::Group& data);

  const std::vector<std::string>& names() const { return names_; }
  // fp32 [names]; undefined when nothing is logged.
  const Tensor& sums() const { return sums_; }

  // Over `count` microbatches. Waits for the device.
  NamedValues means(int64_t count) const;

 private:
  std::vector<std::string> names_;
  Tensor sums_;
};

NamedValues means_of(const std::vector<std::string>& names, std::span<const float> sums,
                     int64_t count);

}  // namespace megatron

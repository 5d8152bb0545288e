#pragma once

#include <memory>
#include <string>

#include "megatron/comm/group.h"

namespace megatron::comm {

struct RankContext;

// While it lives, this rank does work that may exceed the time-out of a collective:
//
//   const comm::Working working(world, "saving iteration 40");
//
// The others wait for it without limit and report its work. A time-out measures the time without a
// sign of life: a stopped or dead process gives none, nor does a rank that waits for another one
// inside this scope.
class Working {
 public:
  Working(const Group& group, std::string what);
  ~Working();
  Working(const Working&) = delete;
  Working& operator=(const Working&) = delete;

 private:
  std::shared_ptr<RankContext> context_;
};

}  // namespace megatron::comm

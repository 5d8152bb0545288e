#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <utility>
#include <vector>

#include "megatron/comm/collectives.h"
#include "megatron/optim/flat_parameters.h"

namespace megatron {

// ZeRO stage 3 (Rajbhandari et al. 2020, arXiv:1910.02054, sec. 5.3): a rank keeps its share of the
// parameters. The first access to a bucket gathers it, in forward passes, recomputed ones and
// backward passes. When it has arrived, the bucket that came next the last time is gathered ahead,
// beside the op. After an op the buckets that were not used for the longest time are dropped, but
// for two: an op may use parameters of two buckets.
//
// All ranks run the same ops, so they gather in the same order.
class DividedParameters {
 public:
  // The divided buckets of all buffers, in the order of buffers and buckets. `parameters` must
  // outlive it.
  explicit DividedParameters(FlatParameters& parameters);
  ~DividedParameters();
  DividedParameters(const DividedParameters&) = delete;
  DividedParameters& operator=(const DividedParameters&) = delete;

  // An op that uses the bucket has queued its reads.
  void op_done(size_t bucket);
  // Call before the shares change. Ordered with the stream's work.
  void drop();

 private:
  enum class State { kAbsent, kArriving, kPresent };
  struct Bucket {
    Tensor whole;  // [n], has memory unless it is absent
    Tensor share;  // [n / ranks]
    comm::Group ranks;
    State state = State::kAbsent;
    int64_t last_use = 0;
    comm::Pending gathering;
  };
  // Two buckets that were gathered one after the other.
  using Steps = std::pair<size_t, size_t>;

  // An access calls arrive().
  void arm(size_t index);
  void start(size_t index);
  void arrive(size_t index);
  void release(Bucket& bucket);
  void release_oldest();
  void gather_ahead();

  std::vector<Bucket> buckets_;
  size_t num_present_ = 0;
  int64_t clock_ = 0;
  bool has_moved_ = false;            // a bucket arrived since the last op
  Steps last_;                        // the last two that arrived; the number of buckets: none
  std::map<Steps, size_t> followed_;  // the bucket that followed them in the last pass
};

}  // namespace megatron

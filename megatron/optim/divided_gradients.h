#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "megatron/comm/collectives.h"
#include "megatron/optim/flat_parameters.h"

namespace megatron {

// ZeRO stage 2 (Rajbhandari et al. 2020, arXiv:1910.02054, sec. 5.2): a rank keeps the gradients of
// its share. The memory of a whole bucket exists from the first gradient of a microbatch until the
// last one; then the ranks sum the bucket, and each adds its share of the sum to `grads`, where the
// first sum of an iteration is made in place. One bucket is summed beside the backward passes that
// fill the next one. Instances add up their shares once, at the end of the iteration.
//
// Which gradient of a microbatch is the last one follows from the ops of its forward pass. If some
// of them never go backward, finish() sums the bucket.
class DividedGradients {
 public:
  // The divided buckets of all buffers, in the order of buffers and buckets. `parameters` must
  // outlive it.
  explicit DividedGradients(FlatParameters& parameters);
  ~DividedGradients();
  DividedGradients(const DividedGradients&) = delete;
  DividedGradients& operator=(const DividedGradients&) = delete;

  // Call before the first backward pass of an iteration.
  void begin();
  // An op that will add to the bucket was recorded.
  void expect(size_t bucket) { buckets_[bucket].num_expected += 1; }
  // Such an op has added its gradient, or has none.
  void delivered(size_t bucket);
  // Call after the last backward pass. Ordered with the stream's work.
  void finish();

 private:
  struct Bucket {
    Tensor whole;  // [n], the sum over this rank's ops; has memory for a while
    Tensor share;  // [n / ranks], the sum over ranks of the instance and microbatches
    comm::Group ranks;
    int64_t num_expected = 0;  // gradients still expected
    bool is_filling = false;   // has memory, and its sum has not started
    bool has_sum = false;      // `share` holds sums of this iteration
    comm::Pending summing;
  };

  Tensor own_part(const Bucket& bucket) const;
  void open(Bucket& bucket);
  void start(size_t index);
  // Completes the sum under way.
  void settle();
  // An access brings zeros.
  void arm(Bucket& bucket);

  FlatParameters& parameters_;
  std::vector<Bucket> buckets_;
  std::optional<size_t> summing_;  // the bucket whose sum is under way
};

}  // namespace megatron

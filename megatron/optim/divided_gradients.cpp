#include "megatron/optim/divided_gradients.h"

#include <utility>

#include "megatron/device/allocator.h"
#include "megatron/kernels/elementwise.h"

namespace megatron {

DividedGradients::DividedGradients(FlatParameters& parameters) : parameters_(parameters) {
  for (const FlatBuffer& buffer : parameters.buffers()) {
    for (size_t b = 0; b < buffer.bucket_grads.size(); ++b) {
      Bucket& bucket = buckets_.emplace_back();
      bucket.whole = buffer.bucket_grads[b];
      bucket.share = share_of(buffer, &FlatBuffer::grads, b);
      bucket.ranks = buffer.sharers;
    }
  }
  for (Bucket& bucket : buckets_) arm(bucket);
}

DividedGradients::~DividedGradients() {
  for (Bucket& bucket : buckets_) {
    bucket.summing.wait();
    bucket.whole.before_access(nullptr);
  }
}

void DividedGradients::begin() {
  summing_.reset();
  for (Bucket& bucket : buckets_) {
    bucket.num_expected = 0;
    bucket.has_sum = false;
    if (!bucket.whole.has_memory()) continue;  // else an iteration that failed left it
    bucket.summing.wait();
    bucket.is_filling = false;
    bucket.whole.drop_memory();
    arm(bucket);
  }
}

void DividedGradients::delivered(size_t index) {
  Bucket& bucket = buckets_[index];
  bucket.num_expected -= 1;
  if (bucket.num_expected == 0 && bucket.is_filling) start(index);
}

void DividedGradients::finish() {
  for (size_t index = 0; index < buckets_.size(); ++index) {
    if (buckets_[index].is_filling) start(index);
  }
  settle();
  for (FlatBuffer& buffer : parameters_.buffers()) {
    if (buffer.bucket_grads.empty()) continue;
    comm::all_reduce(buffer.grads.view(), comm::Reduce::kSum, buffer.copies, buffer.grads.stream());
  }
}

Tensor DividedGradients::own_part(const Bucket& bucket) const {
  return bucket.whole.slice(bucket.ranks.rank() * bucket.share.numel(), bucket.share.numel());
}

void DividedGradients::arm(Bucket& bucket) {
  bucket.whole.before_access([this, &bucket] { open(bucket); });
}

void DividedGradients::open(Bucket& bucket) {
  if (bucket.whole.has_memory()) settle();  // gradients that came after the last one
  bucket.whole.before_access(nullptr);
  const MemoryScope scope(MemoryCategory::kGradients, "gradients that are not summed yet");
  bucket.whole.take_memory();
  kernels::fill(bucket.whole.view(), 0.0f, bucket.whole.stream());
  bucket.is_filling = true;
}

void DividedGradients::start(size_t index) {
  settle();  // so that two whole buckets exist at most, besides those of tied parameters
  Bucket& bucket = buckets_[index];
  bucket.is_filling = false;
  Tensor sum = bucket.has_sum ? own_part(bucket) : bucket.share;
  bucket.summing = comm::start_reduce_scatter(sum.view(), bucket.whole.view(), comm::Reduce::kSum,
                                              bucket.ranks, bucket.whole.stream());
  summing_ = index;
  arm(bucket);
}

void DividedGradients::settle() {
  if (!summing_) return;
  Bucket& bucket = buckets_[*std::exchange(summing_, std::nullopt)];
  bucket.whole.before_access(nullptr);
  bucket.summing.wait();
  if (bucket.has_sum) add_inplace(bucket.share, own_part(bucket));
  bucket.has_sum = true;
  bucket.whole.drop_memory();
  arm(bucket);
}

}  // namespace megatron

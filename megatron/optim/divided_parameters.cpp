#include "megatron/optim/divided_parameters.h"

#include "megatron/core/error.h"
#include "megatron/device/allocator.h"

namespace megatron {
namespace {

constexpr size_t kKept = 2;

}  // namespace

DividedParameters::DividedParameters(FlatParameters& parameters) {
  for (const FlatBuffer& buffer : parameters.buffers()) {
    if (buffer.is_in_fp8) continue;
    for (size_t b = 0; b < buffer.bucket_params.size(); ++b) {
      Bucket& bucket = buckets_.emplace_back();
      bucket.whole = buffer.bucket_params[b];
      bucket.share = share_of(buffer, &FlatBuffer::params, b);
      bucket.ranks = buffer.sharers;
    }
  }
  last_ = {buckets_.size(), buckets_.size()};
  for (size_t index = 0; index < buckets_.size(); ++index) arm(index);
}

DividedParameters::~DividedParameters() {
  for (Bucket& bucket : buckets_) {
    bucket.gathering.wait();
    bucket.whole.before_access(nullptr);
  }
}

void DividedParameters::op_done(size_t index) {
  buckets_[index].last_use = ++clock_;
  if (!has_moved_) return;
  has_moved_ = false;
  while (num_present_ > kKept) release_oldest();
}

void DividedParameters::drop() {
  for (Bucket& bucket : buckets_) {
    if (bucket.state != State::kAbsent) release(bucket);
  }
  last_ = {buckets_.size(), buckets_.size()};
  has_moved_ = false;
}

void DividedParameters::arm(size_t index) {
  buckets_[index].whole.before_access([this, index] { arrive(index); });
}

void DividedParameters::start(size_t index) {
  Bucket& bucket = buckets_[index];
  invariant(bucket.state == State::kAbsent, "only an absent bucket is gathered");
  const MemoryScope scope(MemoryCategory::kParameters, "gathered parameters");
  bucket.whole.take_memory();
  bucket.whole.before_access(nullptr);
  bucket.gathering = comm::start_all_gather(bucket.whole.view(), bucket.share.view(), bucket.ranks,
                                            bucket.whole.stream());
  bucket.state = State::kArriving;
  arm(index);
}

void DividedParameters::arrive(size_t index) {
  Bucket& bucket = buckets_[index];
  if (bucket.state == State::kAbsent) start(index);
  bucket.whole.before_access(nullptr);
  bucket.gathering.wait();
  bucket.state = State::kPresent;
  bucket.last_use = ++clock_;
  num_present_ += 1;
  has_moved_ = true;
  followed_[last_] = index;
  last_ = {last_.second, index};
  gather_ahead();  // before the op that uses this bucket is queued, so that both run at once
}

void DividedParameters::release(Bucket& bucket) {
  bucket.gathering.wait();
  if (bucket.state == State::kPresent) num_present_ -= 1;
  bucket.state = State::kAbsent;
  bucket.whole.drop_memory();
  arm(static_cast<size_t>(&bucket - buckets_.data()));
}

void DividedParameters::release_oldest() {
  Bucket* oldest = nullptr;
  for (Bucket& bucket : buckets_) {
    if (bucket.state != State::kPresent) continue;
    if (oldest == nullptr || bucket.last_use < oldest->last_use) oldest = &bucket;
  }
  release(*oldest);
}

void DividedParameters::gather_ahead() {
  const auto next = followed_.find(last_);
  if (next == followed_.end()) return;
  for (Bucket& bucket : buckets_) {  // prefetched buckets without a use
    const bool is_next = &bucket == &buckets_[next->second];
    if (bucket.state == State::kArriving && !is_next) release(bucket);
  }
  if (buckets_[next->second].state == State::kAbsent) start(next->second);
}

}  // namespace megatron

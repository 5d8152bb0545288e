#include "megatron/parallel/fp8_gather.h"

#include <algorithm>
#include <utility>

#include "megatron/core/error.h"
#include "megatron/device/allocator.h"
#include "megatron/device/trace.h"

namespace megatron {

Fp8Gather::Fp8Gather(std::vector<Fp8Bucket> buckets, bool overlaps, Stream stream)
    : overlaps_(overlaps), stream_(stream) {
  const MemoryScope scope(MemoryCategory::kParameters, "weights and scales in FP8");
  buckets_.resize(buckets.size());  // they stay where they are
  for (size_t b = 0; b < buckets.size(); ++b) {
    Bucket& bucket = buckets_[b];
    bucket.of = std::move(buckets[b]);
    invariant(bucket.of.size % bucket.of.ranks.size() == 0,
              "a bucket divides evenly among the ranks");
    bucket.rows = zeros({bucket.of.size}, DType::kFloat8E4M3, stream_);
    for (const Fp8Bucket::Weight& weight : bucket.of.weights) {
      const Shape& shape = weight.layer->parameter().shape();
      weight.layer->gather_weight_in(bucket.rows.slice(weight.begin, shape.numel()).reshape(shape),
                                     [this, &bucket] { complete(bucket); });
      bucket.amax.push_back(num_amax_);
      num_amax_ += weight.layer->shape_of_amax().numel();
    }
    bucket.end_amax = num_amax_;
  }
}

Fp8Gather::~Fp8Gather() {
  for (const Bucket& bucket : buckets_) {
    for (const Fp8Bucket::Weight& weight : bucket.of.weights) {
      weight.layer->gather_weight_in({}, nullptr);
    }
  }
}

void Fp8Gather::scale_weights() {
  Tensor all = zeros({num_amax_}, DType::kFloat32, stream_);
  const auto amax_of = [&](const Bucket& bucket, size_t weight) {
    const Shape shape = bucket.of.weights[weight].layer->shape_of_amax();
    return all.slice(bucket.amax[weight], shape.numel()).reshape(shape);
  };
  if (buckets_.front().of.weights.front().layer->needs_amax_of_weight()) {
    for (const Bucket& bucket : buckets_) {
      for (const Fp8Bucket::Part& part : bucket.of.parts) {
        const Fp8Bucket::Weight& weight = bucket.of.weights[part.weight];
        weight.layer->measure_part(amax_of(bucket, part.weight), part.elements,
                                   part.begin - weight.begin);
      }
    }
    reduce_amax(all);
  }
  for (const Bucket& bucket : buckets_) {
    for (size_t i = 0; i < bucket.of.weights.size(); ++i) {
      bucket.of.weights[i].layer->scale_weight(amax_of(bucket, i));
    }
  }
}

// In one sum for neighbouring buckets of the same ranks.
void Fp8Gather::reduce_amax(const Tensor& all) const {
  int64_t begin = 0;
  for (size_t b = 0; b < buckets_.size(); ++b) {
    const comm::Group& ranks = buckets_[b].of.ranks;
    const bool goes_on =
        b + 1 < buckets_.size() &&
        std::ranges::equal(ranks.world_ranks(), buckets_[b + 1].of.ranks.world_ranks());
    if (goes_on) continue;
    Tensor part = all.slice(begin, buckets_[b].end_amax - begin);
    comm::all_reduce(part.view(), comm::Reduce::kMax, ranks, stream_);
    begin = buckets_[b].end_amax;
  }
}

void Fp8Gather::start() {
  const TraceRange range("gather_fp8_weights", stream_);
  for (Bucket& bucket : buckets_) bucket.gathering.wait();  // for weights without a use
  scale_weights();
  for (auto bucket = buckets_.rbegin(); bucket != buckets_.rend(); ++bucket) {
    for (const Fp8Bucket::Part& part : bucket->of.parts) {
      const Fp8Bucket::Weight& weight = bucket->of.weights[part.weight];
      weight.layer->quantize_part(part.elements, part.begin - weight.begin);
    }
    const comm::Group& ranks = bucket->of.ranks;
    const int64_t share = bucket->of.size / ranks.size();
    const Tensor own = bucket->rows.slice(ranks.rank() * share, share);
    bucket->gathering = comm::start_all_gather(bucket->rows.view(), own.view(), ranks, stream_);
    bucket->is_complete = false;
  }
  if (overlaps_) return;
  for (auto bucket = buckets_.rbegin(); bucket != buckets_.rend(); ++bucket) complete(*bucket);
}

void Fp8Gather::complete(Bucket& bucket) {
  if (bucket.is_complete) return;
  bucket.is_complete = true;
  bucket.gathering.wait();
  for (const Fp8Bucket::Weight& weight : bucket.of.weights) weight.layer->complete_weight();
}

}  // namespace megatron

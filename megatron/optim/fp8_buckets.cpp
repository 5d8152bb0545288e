#include "megatron/optim/fp8_buckets.h"

#include <map>

namespace megatron {

void find_fp8_layers(std::vector<OptimizedParameter>& parameters,
                     const std::vector<const Module*>& chunks) {
  std::map<const void*, const Fp8Layer*> layers;  // by the elements of their weights
  for (const Module* chunk : chunks) {
    for (const Fp8Layer* layer : modules_of<Fp8Layer>(*chunk)) {
      layers[layer->parameter().data().view().data] = layer;
    }
  }
  for (OptimizedParameter& parameter : parameters) {
    const auto found = layers.find(parameter.variable.data().view().data);
    if (found != layers.end()) parameter.fp8 = found->second;
  }
}

std::vector<Fp8Bucket> fp8_buckets(const FlatParameters& parameters) {
  std::vector<Fp8Bucket> buckets;
  for (const FlatBuffer& buffer : parameters.buffers()) {
    if (!buffer.is_in_fp8) continue;
    for (size_t b = 0; b < buffer.layout.buckets.size(); ++b) {
      const FlatBucket& flat = buffer.layout.buckets[b];
      Fp8Bucket& bucket = buckets.emplace_back();
      bucket.size = flat.end - flat.begin;
      bucket.ranks = buffer.sharers;
      std::map<size_t, size_t> numbers;  // in the bucket, by position in the buffer
      for (size_t i = buffer.parameters.size(); i-- > 0;) {
        const FlatPlace& place = buffer.layout.places[i];
        if (place.bucket != static_cast<int64_t>(b)) continue;
        numbers[i] = bucket.weights.size();
        bucket.weights.push_back(
            {parameters.parameters()[buffer.parameters[i]].fp8, place.begin - flat.begin});
      }
      const FlatSpan& share = buffer.shares[b];
      const Tensor own = share_of(buffer, &FlatBuffer::params, b);
      for (const FlatPart& part : parts_in(buffer, share)) {
        bucket.parts.push_back({.weight = numbers.at(part.parameter),
                                .begin = share.begin - flat.begin + part.begin,
                                .elements = own.slice(part.begin, part.part.size())});
      }
    }
  }
  return buckets;
}

}  // namespace megatron

#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "megatron/kernels/random_rounding.h"
#include "megatron/optim/flat_parameters.h"
#include "megatron/tensor/tensor.h"

namespace megatron {

// kernels::RoundingRanges on the buffers' device.
struct RoundingTables {
  Tensor ends;    // [k] int64
  Tensor places;  // [k, kernels::kPlaceNumbers] int64
};

// The places of a rank's part of a tensor, of shape `local`, in the whole tensor: each range is
// [first, the next one's first), counted in the part in row-major order. Keys are 0.
std::vector<kernels::RoundingPlace> places_in_whole(const Shape& local, const Sharding& sharding);

// The places of the elements of `span` of a buffer. Padding belongs to some place.
RoundingTables rounding_tables(const FlatBuffer& buffer,
                               std::span<const OptimizedParameter> parameters, const FlatSpan& span,
                               uint64_t seed, Stream stream);

}  // namespace megatron

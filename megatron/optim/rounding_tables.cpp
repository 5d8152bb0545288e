#include "megatron/optim/rounding_tables.h"

#include <algorithm>

#include "megatron/device/philox.h"
#include "megatron/device/random.h"

namespace megatron {
namespace {

// The number of elements of axes [begin, end).
int64_t elements_of(const Shape& shape, int begin, int end) {
  int64_t product = 1;
  for (int axis = begin; axis < end; ++axis) product *= shape[axis];
  return product;
}

// The position, in row-major order, of a block's row: `row` counts the indices of axes [0, axis) in
// the block, and `begin` is where the block begins.
int64_t row_begin(const Shape& shape, const std::vector<int64_t>& begin, const Shape& block,
                  int axis, int64_t row) {
  int64_t position = 0;
  int64_t stride = elements_of(shape, 0, shape.rank());
  int64_t rows = elements_of(block, 0, axis);
  for (int i = 0; i < shape.rank(); ++i) {
    stride /= shape[i];
    int64_t index = begin[static_cast<size_t>(i)];
    if (i < axis) {
      rows /= block[i];
      index += row / rows % block[i];
    }
    position += index * stride;
  }
  return position;
}

}  // namespace

std::vector<kernels::RoundingPlace> places_in_whole(const Shape& local, const Sharding& sharding) {
  const int64_t numel = local.numel();
  if (numel == 0) return {};
  if (sharding.is_whole()) return {{0, 0, 0, numel, numel}};
  const Shape whole = sharding.whole(local);
  const int axis = sharding.last_axis();
  const int64_t stride = elements_of(whole, axis, whole.rank());
  std::vector<kernels::RoundingPlace> rows;  // each adjacent in both
  for (const Sharding::Block& block : sharding.blocks(local)) {
    const int64_t count = elements_of(block.shape, 0, axis);
    const int64_t width = elements_of(block.shape, axis, local.rank());
    rows.reserve(rows.size() + static_cast<size_t>(count));
    for (int64_t row = 0; row < count; ++row) {
      rows.push_back({0, row_begin(local, block.local, block.shape, axis, row),
                      row_begin(whole, block.whole, block.shape, axis, row), width, stride});
    }
  }
  std::ranges::sort(rows, {}, &kernels::RoundingPlace::first);
  std::vector<kernels::RoundingPlace> places;
  for (const kernels::RoundingPlace& row : rows) {
    if (!places.empty() && places.back().width == row.width &&
        places.back().element(row.first) == row.origin) {
      continue;  // the next row of the same place
    }
    places.push_back(row);
  }
  return places;
}

RoundingTables rounding_tables(const FlatBuffer& buffer,
                               std::span<const OptimizedParameter> parameters, const FlatSpan& span,
                               uint64_t seed, Stream stream) {
  std::vector<int64_t> ends;
  std::vector<int64_t> numbers;
  for (size_t i = buffer.parameters.size(); i-- > 0;) {  // the order of the buffer
    const OptimizedParameter& parameter = parameters[buffer.parameters[i]];
    const FlatPlace& at = buffer.layout.places[i];
    if (at.end <= span.begin || at.begin >= span.end) continue;
    const auto key = static_cast<int64_t>(mixed_key(seed, hash_of(parameter.name)));
    const auto places = places_in_whole(parameter.variable.data().shape(), parameter.sharding);
    for (size_t k = 0; k < places.size(); ++k) {
      const int64_t end = k + 1 < places.size() ? at.begin + places[k + 1].first : at.end;
      if (end <= span.begin) continue;
      const kernels::RoundingPlace& place = places[k];
      ends.push_back(std::min(end, span.end) - span.begin);
      numbers.insert(numbers.end(), {key, at.begin + place.first - span.begin, place.origin,
                                     place.width, place.stride});
      if (end >= span.end) break;
    }
  }
  if (ends.empty()) {  // padding alone
    ends.push_back(0);
    numbers.assign(static_cast<size_t>(kernels::kPlaceNumbers), 1);
  }
  ends.back() = span.size();
  const auto count = static_cast<int64_t>(ends.size());
  return {tensor_of(ends, {count}).to(stream),
          tensor_of(numbers, {count, kernels::kPlaceNumbers}).to(stream)};
}

}  // namespace megatron

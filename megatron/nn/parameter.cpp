#include "megatron/nn/parameter.h"

#include <algorithm>

#include "megatron/core/error.h"

namespace megatron {

Sharding Sharding::on_rank(int64_t rank, int64_t ranks) const {
  if (!is_divided()) return {};
  return {.axis = axis, .index = rank, .count = ranks, .parts = parts};
}

Shape Sharding::whole(const Shape& local) const {
  return is_whole() ? local : local.with(axis, local[axis] * count);
}

Shape Sharding::local(const Shape& whole) const {
  if (is_whole()) return whole;
  if (whole[axis] % (count * parts) != 0) {
    throw ShapeError("axis " + std::to_string(axis) + " of a tensor of shape " + whole.str() +
                     " does not divide into " + std::to_string(count * parts) + " equal parts");
  }
  return whole.with(axis, whole[axis] / count);
}

std::vector<Sharding::Block> Sharding::blocks(const Shape& local) const {
  if (is_whole()) return {{.size = local.rank() == 0 ? 1 : local[std::max(axis, 0)]}};
  const int64_t size = local[axis] / parts;
  std::vector<Block> all;
  for (int64_t part = 0; part < parts; ++part) {
    all.push_back({part * size, (part * count + index) * size, size});
  }
  return all;
}

}  // namespace megatron

#include "megatron/nn/parameter.h"

#include <algorithm>
#include <utility>

#include "megatron/core/error.h"

namespace megatron {

bool Sharding::is_whole() const {
  return std::ranges::all_of(axes, [](const AxisSharding& one) { return one.count == 1; });
}

int Sharding::last_axis() const {
  int last = 0;
  for (const AxisSharding& one : axes) last = std::max(last, one.axis);
  return last;
}

Sharding Sharding::on_rank(int64_t rank, int64_t ranks, MeshAxis along) const {
  Sharding there = *this;
  for (AxisSharding& one : there.axes) {
    if (one.along != along) continue;
    one.index = rank;
    one.count = ranks;
  }
  return there;
}

Shape Sharding::whole(const Shape& local) const {
  Shape whole = local;
  for (const AxisSharding& one : axes) whole = whole.with(one.axis, local[one.axis] * one.count);
  return whole;
}

Shape Sharding::local(const Shape& whole) const {
  Shape local = whole;
  for (const auto& [axis, index, count, parts, along] : axes) {
    if (count == 1) continue;
    if (whole[axis] % (count * parts) != 0) {
      throw ShapeError("axis " + std::to_string(axis) + " of a tensor of shape " + whole.str() +
                       " does not divide into " + std::to_string(count * parts) + " equal parts");
    }
    local = local.with(axis, whole[axis] / count);
  }
  return local;
}

std::vector<Sharding::Block> Sharding::blocks(const Shape& local) const {
  const std::vector<int64_t> origin(static_cast<size_t>(local.rank()), 0);
  std::vector<Block> all = {{origin, origin, local}};
  for (const auto& [axis, index, count, parts, along] : axes) {
    if (count == 1) continue;
    const auto at = static_cast<size_t>(axis);
    const int64_t size = local[axis] / parts;
    std::vector<Block> cut;
    for (const Block& block : all) {
      for (int64_t part = 0; part < parts; ++part) {
        Block& piece = cut.emplace_back(block);
        piece.local[at] = part * size;
        piece.whole[at] = (part * count + index) * size;
        piece.shape = block.shape.with(axis, size);
      }
    }
    all = std::move(cut);
  }
  std::ranges::sort(all, {}, &Block::local);
  return all;
}

MeshAxes ParameterInfo::shared_axes() const {
  const bool is_expert = gradient_axes.intersects(kExpertAxes);
  MeshAxes shared = (is_expert ? kExpertAxes : kDenseAxes).without(kDataAxes);
  for (const AxisSharding& one : sharding.axes) {
    if (one.count > 1) shared = shared.without(one.along);
  }
  return shared;
}

}  // namespace megatron

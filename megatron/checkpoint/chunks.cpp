#include "megatron/checkpoint/chunks.h"

#include <algorithm>
#include <utility>

namespace megatron {
namespace {

int64_t numel_from(const Shape& shape, int axis) {
  int64_t count = 1;
  for (int i = axis; i < shape.rank(); ++i) count *= shape[i];
  return count;
}

// Appends, in the order of elements, the rectangles that make up elements [begin, end) of `region`.
// Only axes from `axis` on have more than one position.
void add_rectangles(std::vector<Region>& rectangles, const Region& region, int axis, int64_t begin,
                    int64_t end) {
  if (begin >= end) return;
  const int64_t row = numel_from(region.shape, axis + 1);  // elements per position of the axis
  const auto at = static_cast<size_t>(axis);
  const auto positions = [&](int64_t first, int64_t count) {
    Region part = region;
    part.offset[at] += first;
    part.shape = part.shape.with(axis, count);
    return part;
  };
  const int64_t first_whole = (begin + row - 1) / row;
  const int64_t end_whole = end / row;
  if (first_whole > end_whole) {  // within one position
    return add_rectangles(rectangles, positions(end_whole, 1), axis + 1, begin - end_whole * row,
                          end - end_whole * row);
  }
  if (begin < first_whole * row) {
    add_rectangles(rectangles, positions(first_whole - 1, 1), axis + 1,
                   begin - (first_whole - 1) * row, row);
  }
  if (first_whole < end_whole) {
    rectangles.push_back(positions(first_whole, end_whole - first_whole));
  }
  if (end > end_whole * row) {
    add_rectangles(rectangles, positions(end_whole, 1), axis + 1, 0, end - end_whole * row);
  }
}

// The last axis that is cut into several blocks; 0 if none is.
int cut_axis(const std::vector<Sharding::Block>& blocks, const Shape& local) {
  int cut = 0;
  for (int axis = 0; axis < local.rank(); ++axis) {
    if (blocks.front().shape[axis] < local[axis]) cut = axis;
  }
  return cut;
}

// Calls f for the parts of a rectangle that have one position on each axis before `axis`, with the
// number of elements before them.
template <class F>
void for_each_position(const Region& rectangle, int axis, const F& f) {
  Region part = rectangle;
  for (int i = 0; i < axis; ++i) part.shape = part.shape.with(i, 1);
  const int64_t size = part.shape.numel();
  for (int64_t begin = 0; begin < rectangle.shape.numel(); begin += size) {
    int64_t position = begin / size;
    for (int i = axis - 1; i >= 0; --i) {
      const auto at = static_cast<size_t>(i);
      part.offset[at] = rectangle.offset[at] + position % rectangle.shape[i];
      position /= rectangle.shape[i];
    }
    f(part, begin);
  }
}

// Adds the elements of `part`, a run of shape `shape` at an offset of this rank's part, that lie in
// a block. Blocks are cut on axis `cut` and on axes before, where the run has one position.
void add_shared(std::vector<CheckpointTensor>& chunks, CheckpointTensor part, const Shape& shape,
                const Sharding::Block& block, int cut) {
  for (int axis = 0; axis < cut; ++axis) {
    const auto at = static_cast<size_t>(axis);
    const int64_t inside = part.offset[at] - block.local[at];
    if (inside < 0 || inside >= block.shape[axis]) return;
  }
  const auto at = static_cast<size_t>(cut);
  const int64_t begin = part.offset[at];
  const int64_t first = std::max(begin, block.local[at]);
  const int64_t last = std::min(begin + shape[cut], block.local[at] + block.shape[cut]);
  if (first >= last) return;
  const int64_t row = numel_from(shape, cut + 1);
  part.data = part.data.slice((first - begin) * row, (last - first) * row)
                  .reshape(shape.with(cut, last - first));
  part.offset[at] = first;
  for (size_t i = 0; i < part.offset.size(); ++i) {
    part.offset[i] += block.whole[i] - block.local[i];
  }
  chunks.push_back(std::move(part));
}

}  // namespace

std::vector<CheckpointTensor> chunks_of(const std::string& name, const Sharding& sharding,
                                        const Shape& local, int64_t begin, const Tensor& run) {
  if (local.rank() == 0) return {whole_tensor(name, run.reshape(local))};
  std::vector<Region> rectangles;
  add_rectangles(rectangles, whole_region(local), 0, begin, begin + run.numel());

  const Shape whole = sharding.whole(local);
  const std::vector<Sharding::Block> blocks = sharding.blocks(local);
  const int cut = cut_axis(blocks, local);
  std::vector<CheckpointTensor> chunks;
  int64_t taken = 0;
  for (const Region& rectangle : rectangles) {
    const Tensor data = run.slice(taken, rectangle.shape.numel());
    taken += data.numel();
    for_each_position(rectangle, cut, [&](const Region& part, int64_t first) {
      const Tensor elements = data.slice(first, part.shape.numel());
      for (const Sharding::Block& block : blocks) {
        add_shared(chunks, {name, elements, whole, part.offset}, part.shape, block, cut);
      }
    });
  }
  return chunks;
}

namespace {

std::vector<CheckpointTensor> chunks_of(const Parameter& parameter) {
  const Tensor& data = parameter.variable.data();
  return chunks_of(parameter.name, parameter.info.sharding, data.shape(), 0,
                   data.reshape({data.numel()}));
}

void append(std::vector<CheckpointTensor>& tensors, std::vector<CheckpointTensor> more) {
  for (CheckpointTensor& tensor : more) tensors.push_back(std::move(tensor));
}

}  // namespace

std::vector<CheckpointTensor> chunks_of(const Module& module) {
  std::vector<CheckpointTensor> tensors;
  for (const Parameter& parameter : named_tensors(module)) {
    append(tensors, chunks_of(parameter));
  }
  return tensors;
}

std::vector<CheckpointTensor> chunks_to_save(
    const Module& module, const std::function<bool(const ParameterInfo&)>& is_first) {
  std::vector<CheckpointTensor> tensors;
  for (const Parameter& parameter : named_tensors(module)) {
    if (parameter.info.is_copy || !is_first(parameter.info)) continue;
    append(tensors, chunks_of(parameter));
  }
  return tensors;
}

}  // namespace megatron

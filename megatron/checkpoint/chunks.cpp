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

}  // namespace

std::vector<CheckpointTensor> chunks_of(const std::string& name, const Sharding& sharding,
                                        const Shape& local, int64_t begin, const Tensor& run) {
  if (local.rank() == 0) return {whole_tensor(name, run.reshape(local))};
  std::vector<Region> rectangles;
  add_rectangles(rectangles, whole_region(local), 0, begin, begin + run.numel());

  const Shape whole = sharding.whole(local);
  const int divided_axis = std::max(sharding.axis, 0);
  const auto axis = static_cast<size_t>(divided_axis);
  std::vector<CheckpointTensor> chunks;
  int64_t taken = 0;
  for (const Region& rectangle : rectangles) {
    const Tensor data = run.slice(taken, rectangle.shape.numel()).reshape(rectangle.shape);
    taken += rectangle.shape.numel();
    for (const Sharding::Block& block : sharding.blocks(local)) {
      const int64_t first = std::max(rectangle.offset[axis], block.local_begin);
      const int64_t last = std::min(rectangle.offset[axis] + rectangle.shape[divided_axis],
                                    block.local_begin + block.size);
      if (first >= last) continue;
      std::vector<int64_t> offset = rectangle.offset;
      offset[axis] = first - block.local_begin + block.whole_begin;
      const bool is_all = last - first == rectangle.shape[divided_axis];
      chunks.push_back({name,
                        is_all ? data : data.slice(first - rectangle.offset[axis], last - first),
                        whole, std::move(offset)});
    }
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

std::vector<CheckpointTensor> chunks_to_save(const Module& module, int tensor_parallel_rank) {
  std::vector<CheckpointTensor> tensors;
  for (const Parameter& parameter : named_tensors(module)) {
    const bool is_on_all = parameter.info.sharding.is_whole();
    if (parameter.info.is_copy || (is_on_all && tensor_parallel_rank != 0)) continue;
    append(tensors, chunks_of(parameter));
  }
  return tensors;
}

}  // namespace megatron

#include "megatron/checkpoint/tensor_hash.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>
#include <vector>

#include "megatron/checkpoint/contents.h"
#include "megatron/comm/collectives.h"
#include "megatron/core/error.h"
#include "megatron/core/listed.h"

namespace megatron {
namespace {

// The elements of a rectangle; `place` is the index of its first one in the whole tensor.
struct Rectangle {
  ConstView elements;
  int64_t place = 0;
};

// Adds a rectangle whose axes from `axis` on lie in a tensor of shape `whole`.
void add_rectangle(HashSums& sums, size_t tensor, const Rectangle& rectangle, const Region& region,
                   const Shape& whole, int axis, Stream stream) {
  const auto& [elements, place] = rectangle;
  const int num_axes = whole.rank() - axis;
  if (num_axes == 0) return sums.add(tensor, elements, place, stream);
  const int64_t begin = place + region.offset[static_cast<size_t>(axis)];
  if (num_axes == 1) return sums.add(tensor, elements, begin, stream);
  if (num_axes == 2) {
    ConstView rows = elements;
    rows.shape = {region.shape[axis], region.shape[axis + 1]};
    const int64_t stride = whole[axis + 1];
    const int64_t first = place + region.offset[static_cast<size_t>(axis)] * stride +
                          region.offset[static_cast<size_t>(axis) + 1];
    return sums.add_rows(tensor, rows, first, stride, stream);
  }
  int64_t of_position = 1;  // elements of the whole for each position of the axis
  for (int i = axis + 1; i < whole.rank(); ++i) of_position *= whole[i];
  const int64_t count = region.shape[axis];
  const int64_t size = count > 0 ? elements.numel() / count : 0;
  const auto* const from = static_cast<const std::byte*>(elements.data);
  for (int64_t i = 0; i < count; ++i) {
    const ConstView part{from + i * size * size_of(elements.dtype), {size}, elements.dtype};
    const int64_t at = region.offset[static_cast<size_t>(axis)] + i;
    add_rectangle(sums, tensor, {part, place + at * of_position}, region, whole, axis + 1, stream);
  }
}

// The sums of 64-bit numbers over the ranks, modulo 2^64.
void sum_hashes_over(std::vector<uint64_t>& numbers, const comm::Group& world) {
  if (world.size() == 1) return;
  std::vector<int64_t> halves;  // which do not overflow
  for (const uint64_t number : numbers) {
    halves.push_back(static_cast<int64_t>(number & 0xffffffffu));
    halves.push_back(static_cast<int64_t>(number >> 32));
  }
  comm::all_reduce({halves.data(), {static_cast<int64_t>(halves.size())}, DType::kInt64},
                   comm::Reduce::kSum, world, Stream{});
  for (size_t i = 0; i < numbers.size(); ++i) {
    numbers[i] =
        static_cast<uint64_t>(halves[2 * i]) + (static_cast<uint64_t>(halves[2 * i + 1]) << 32);
  }
}

// The region without rows that do not count.
Region counted_part(Region region, const Shape& counted) {
  if (counted.rank() == 0) return region;
  const int64_t rows = std::clamp<int64_t>(counted[0] - region.offset[0], 0, region.shape[0]);
  region.shape = region.shape.with(0, rows);
  return region;
}

// True if the target is the tensor that `stored` describes, possibly with more padding rows.
bool is_same_tensor(const CheckpointTensor& target, const TensorHash& stored) {
  if (target.data.dtype() != stored.dtype || target.whole.rank() != stored.shape.rank())
    return false;
  if (target.whole == stored.shape) return true;
  return has_vocabulary_rows(target.name) && target.whole.rank() > 0 &&
         target.whole[0] >= stored.shape[0] && target.whole.with(0, 0) == stored.shape.with(0, 0);
}

// The names of the section's tensors whose loaded elements have another hash.
void find_differences(const std::string& section, const std::map<std::string, TensorHash>& stored,
                      const std::vector<CheckpointTensor>& parts, const comm::Group& world,
                      std::vector<std::string>& differences) {
  std::map<std::string_view, size_t> numbers;
  for (const auto& [name, hash] : stored) numbers.emplace(name, numbers.size());
  HashSums sums(stored.size());
  std::vector<uint64_t> covered(stored.size());
  for (const CheckpointTensor& part : parts) {
    const auto found = stored.find(part.name);
    if (found == stored.end() || !is_same_tensor(part, found->second)) continue;
    const Region region{part.offset, part.data.shape()};
    const size_t number = numbers.at(part.name);
    const Tensor& data = part.data;
    add_region(sums, number, data.view(), region, found->second.shape, data.stream());
    covered[number] +=
        static_cast<uint64_t>(counted_part(region, found->second.shape).shape.numel());
  }
  std::vector<uint64_t> hashes = sums.values();
  sum_hashes_over(hashes, world);
  sum_hashes_over(covered, world);
  for (const auto& [name, hash] : stored) {
    const size_t number = numbers.at(name);
    const bool is_whole = covered[number] == static_cast<uint64_t>(hash.shape.numel());
    if (is_whole && hashes[number] != hash.hash) {
      differences.push_back(section == kWeightsSection ? name
                                                       : fmt::format("{} of {}", section, name));
    }
  }
}

std::map<std::string, TensorHash> hashes_of_section(const std::vector<CheckpointTensor>& parts,
                                                    const ArgMap& args) {
  std::map<std::string, TensorHash> hashes;
  for (const CheckpointTensor& part : parts) {
    hashes[part.name] = {counted_shape(part.name, part.whole, args), part.data.dtype(), 0};
  }
  std::map<std::string_view, size_t> numbers;
  for (const auto& [name, hash] : hashes) numbers.emplace(name, numbers.size());
  HashSums sums(hashes.size());
  for (const CheckpointTensor& part : parts) {
    const Tensor& data = part.data;
    add_region(sums, numbers.at(part.name), data.view(), {part.offset, data.shape()},
               hashes.at(part.name).shape, data.stream());
  }
  const std::vector<uint64_t> values = sums.values();
  for (auto& [name, hash] : hashes) hash.hash = values[numbers.at(name)];
  return hashes;
}

}  // namespace

Shape counted_shape(std::string_view tensor, const Shape& whole, const ArgMap& args) {
  const int64_t real = true_vocab_size(args);
  if (real == 0 || !has_vocabulary_rows(tensor) || whole.rank() == 0) return whole;
  return whole.with(0, std::min(real, whole[0]));
}

void add_region(HashSums& sums, size_t tensor, ConstView elements, const Region& region,
                const Shape& counted, Stream stream) {
  const Region part = counted_part(region, counted);
  elements.shape = part.shape;  // the first rows
  add_rectangle(sums, tensor, {elements}, part, counted, 0, stream);
}

TensorHashes hashes_of(const CheckpointState& parts) {
  TensorHashes hashes;
  hashes[kWeightsSection] = hashes_of_section(parts.model, parts.args);
  for (const auto& [section, tensors] : parts.optimizer) {
    hashes[section] = hashes_of_section(tensors, parts.args);
  }
  return hashes;
}

void expect_stored_hashes(const CheckpointContents& contents, const CheckpointState& parts,
                          const comm::Group& world) {
  std::vector<std::string> differences;
  for (const auto& [section, stored] : contents.hashes) {
    const auto optimizer = parts.optimizer.find(section);
    if (section == kWeightsSection) {
      find_differences(section, stored, parts.model, world, differences);
    } else if (optimizer != parts.optimizer.end()) {
      find_differences(section, stored, optimizer->second, world, differences);
    }
  }
  if (differences.empty()) return;
  throw FormatError(
      fmt::format("{}: {} loaded tensors do not have the hashes of the saved ones: {}; memory was "
                  "changed while they were saved or loaded. Load again, and if it is the same, an "
                  "earlier checkpoint (--ckpt-step)",
                  contents.directory.string(), differences.size(), listed(differences)));
}

}  // namespace megatron

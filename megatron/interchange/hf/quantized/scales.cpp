#include "megatron/interchange/hf/quantized/scales.h"

#include <fmt/format.h>

#include "megatron/core/error.h"

namespace megatron {
namespace {

template <class T, class To>
std::vector<To> elements_as(const Tensor& x) {
  std::vector<To> y;
  y.reserve(static_cast<size_t>(x.numel()));
  for (const T value : x.span<T>()) y.push_back(static_cast<To>(value));
  return y;
}

}  // namespace

std::vector<float> floats_of(const Tensor& x) {
  switch (x.dtype()) {
    case DType::kFloat8E4M3:
      return elements_as<Float8E4M3, float>(x);
    case DType::kFloat8E5M2:
      return elements_as<Float8E5M2, float>(x);
    case DType::kInt8:
      return elements_as<int8_t, float>(x);
    case DType::kUInt8:
      return elements_as<uint8_t, float>(x);
    case DType::kInt32:
      return elements_as<int32_t, float>(x);
    case DType::kInt64:
      return elements_as<int64_t, float>(x);
    default:
      return elements_as<float, float>(cast(x, DType::kFloat32));
  }
}

std::vector<int64_t> integers_of(const Tensor& x) {
  return x.dtype() == DType::kInt32 ? elements_as<int32_t, int64_t>(x)
                                    : elements_as<int64_t, int64_t>(x);
}

std::vector<float> transposed(const std::vector<float>& x, int64_t columns) {
  const size_t across = static_cast<size_t>(columns);
  const size_t rows = across == 0 ? 0 : x.size() / across;
  std::vector<float> y(x.size());
  for (size_t r = 0; r < rows; ++r) {
    for (size_t c = 0; c < across; ++c) y[c * rows + r] = x[r * across + c];
  }
  return y;
}

std::vector<std::string> layers_with(const ShardedWeights& folder, const std::string& suffix) {
  std::vector<std::string> layers;
  for (const auto& [name, tensor] : folder.tensors()) {
    if (name.ends_with(suffix)) layers.push_back(name.substr(0, name.size() - suffix.size()));
  }
  return layers;
}

void refuse_part(const ShardedWeights& folder, const std::string& name, const std::string& rule) {
  const StoredTensor* found = folder.find(name);
  const std::string state =
      found == nullptr ? "is missing"
                       : fmt::format("is {} of {}", found->shape.str(), name_of(found->dtype));
  throw FormatError(
      fmt::format("{}: {} {}, expected {}; is quantization_config that of these weights?",
                  folder.path().string(), name, state, rule));
}

Shape part_shape(const ShardedWeights& folder, const std::string& name, int axes) {
  const StoredTensor* found = folder.find(name);
  if (found == nullptr || found->shape.rank() != axes || found->shape.numel() < 1) {
    refuse_part(folder, name, fmt::format("a tensor of {} axes", axes));
  }
  return found->shape;
}

Shape part_shape(const ShardedWeights& folder, const std::string& name, int axes, DType dtype) {
  const Shape shape = part_shape(folder, name, axes);
  if (folder.find(name)->dtype != dtype) {
    refuse_part(folder, name, fmt::format("{} axes of {}", axes, name_of(dtype)));
  }
  return shape;
}

}  // namespace megatron

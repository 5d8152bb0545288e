#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "megatron/formats/sharded.h"
#include "megatron/interchange/hf/binding.h"

// Quantized weights of Hugging Face folders. A folder has, in place of a weight, tensors of packed
// numbers, scales and zero points, which quantization_config of config.json describes. They are
// read as the weight that they stand for: everything behind sees a folder with plain weights.
namespace megatron {

// Computes rows [begin, end) of a weight's first axis, in fp32. Must not throw; called by several
// threads at once.
using RowReader = std::function<void(int64_t begin, int64_t end, float* y)>;

// A weight that a folder holds in several tensors.
struct QuantizedWeight {
  std::string name;  // as in a folder with plain weights
  Shape shape;
  std::vector<std::string> parts;   // names of its tensors in the folder
  std::vector<std::string> unused;  // tensors beside it that belong to quantized activations
  // The rows from the elements of its parts, in their order. Throws FormatError.
  std::function<RowReader(std::span<const Tensor> parts)> open;
};

// A method, as quantization_config describes it; immutable. Each is a file of quantized/ and a row
// of the table in quantized.cpp.
class Quantization {
 public:
  virtual ~Quantization() = default;
  // The quantized weights of a folder, found by the names and shapes of its tensors. Throws
  // FormatError, which names a tensor that is missing or does not fit.
  virtual std::vector<QuantizedWeight> weights(const ShardedWeights& folder) const = 0;
};

// The method of quantization_config; null without it. Reports a method that is not read, and
// settings of it that are not.
std::shared_ptr<const Quantization> read_quantization(HfBinding& fields);

// The folder with quantized weights as plain ones, computed in fp32 whenever they are read and
// rounded to `dtype`. Throws FormatError.
std::shared_ptr<const ShardedWeights> dequantized(
    const std::shared_ptr<const ShardedWeights>& folder, const Quantization& method, DType dtype);

}  // namespace megatron

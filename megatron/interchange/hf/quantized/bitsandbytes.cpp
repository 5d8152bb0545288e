// The package bitsandbytes. In 4 bits (QLoRA, Dettmers et al. 2023, arXiv:2305.14314), blocks of a
// weight's elements, in order, have a common factor:
//   weight                  uint8 [elements / 2, 1], the first of two elements in the upper bits
//   weight.quant_map        [16]      values of the numbers, of NF4 or FP4
//   weight.absmax           [blocks]  factors; or uint8, themselves in blocks:
//   weight.nested_quant_map [256], weight.nested_absmax [blocks of blocks]
//   weight.quant_state.bitsandbytes__nf4 (or fp4)  uint8, JSON: shape, blocksize, nested_blocksize,
//                           nested_offset, which is added to each factor
// In 8 bits (LLM.int8(), Dettmers et al. 2022, arXiv:2208.07339):
//   weight  int8 [rows, columns]
//   SCB     [rows], the value of 127
#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "megatron/core/error.h"
#include "megatron/formats/safetensors.h"
#include "megatron/interchange/hf/quantized/methods.h"
#include "megatron/interchange/hf/quantized/scales.h"

namespace megatron {
namespace {

using nlohmann::json;

struct FourBitState {
  int64_t rows = 0;
  int64_t columns = 0;
  int64_t block = 0;
  int64_t nested_block = 0;
  float offset = 0;
};

// The state of a weight; rows 0 if it is not one.
FourBitState state_in(const Tensor& text) {
  const std::span<const std::byte> bytes = bytes_of(text.view());
  const json document =
      json::parse(reinterpret_cast<const char*>(bytes.data()),
                  reinterpret_cast<const char*>(bytes.data()) + bytes.size(), nullptr, false);
  const auto size = [](const json& value) {
    const bool is_size = value.is_number_integer() && value >= 1 && value <= kMaxHfSize;
    return is_size ? value.get<int64_t>() : int64_t{0};
  };
  FourBitState state;
  if (!document.is_object()) return state;
  const json shape = document.value("shape", json());
  const json offset = document.value("nested_offset", json());
  state.block = size(document.value("blocksize", json()));
  state.nested_block = size(document.value("nested_blocksize", json()));
  if (offset.is_number()) state.offset = offset.get<float>();
  if (!shape.is_array() || shape.size() != 2 || state.block == 0) return state;
  state.columns = size(shape[1]);
  if (state.columns > 0) state.rows = size(shape[0]);
  return state;
}

QuantizedWeight four_bit_weight(const ShardedWeights& folder, const std::string& layer) {
  const std::string numbers = layer + ".weight";
  std::string text = numbers + ".quant_state.bitsandbytes__nf4";
  if (folder.find(text) == nullptr) text = numbers + ".quant_state.bitsandbytes__fp4";
  part_shape(folder, text, 1, DType::kUInt8);
  const FourBitState state = state_in(read_whole(*folder.find(text)));
  if (state.rows == 0) refuse_part(folder, text, "JSON with the shape and blocksize of a matrix");
  const int64_t elements = state.rows * state.columns;
  if (part_shape(folder, numbers, 2, DType::kUInt8).numel() != (elements + 1) / 2) {
    refuse_part(folder, numbers,
                fmt::format("the numbers of a weight [{}, {}]", state.rows, state.columns));
  }
  const auto expect_size = [&](const std::string& name, int64_t size) {
    if (part_shape(folder, name, 1)[0] != size) refuse_part(folder, name, Shape{size}.str());
  };
  const int64_t blocks = (elements + state.block - 1) / state.block;
  QuantizedWeight result = {.name = numbers,
                            .shape = {state.rows, state.columns},
                            .parts = {numbers, numbers + ".quant_map", numbers + ".absmax"},
                            .unused = {text},
                            .open = {}};
  expect_size(result.parts[1], 16);
  expect_size(result.parts[2], blocks);
  const bool is_nested = folder.find(numbers + ".nested_absmax") != nullptr;
  if (is_nested) {
    result.parts.push_back(numbers + ".nested_quant_map");
    result.parts.push_back(numbers + ".nested_absmax");
    expect_size(result.parts[3], 256);
    if (state.nested_block == 0) refuse_part(folder, text, "JSON with nested_blocksize");
    expect_size(result.parts[4], (blocks + state.nested_block - 1) / state.nested_block);
    part_shape(folder, result.parts[2], 1, DType::kUInt8);
  }
  result.open = [state, is_nested](std::span<const Tensor> parts) -> RowReader {
    std::vector<float> factors = floats_of(parts[2]);
    if (is_nested) {
      const std::vector<float> values = floats_of(parts[3]);
      const std::vector<float> outer = floats_of(parts[4]);
      for (size_t i = 0; i < factors.size(); ++i) {
        const size_t block = i / static_cast<size_t>(state.nested_block);
        factors[i] = values[static_cast<size_t>(factors[i])] * outer[block] + state.offset;
      }
    }
    const uint8_t* bytes = parts[0].span<uint8_t>().data();
    return [owner = parts[0], bytes, map = floats_of(parts[1]), factors = std::move(factors),
            state](int64_t begin, int64_t end, float* y) {
      for (int64_t i = begin * state.columns; i < end * state.columns; ++i) {
        const int shift = i % 2 == 0 ? 4 : 0;
        const auto number = static_cast<size_t>(bytes[i / 2] >> shift & 15);
        *y++ = map[number] * factors[static_cast<size_t>(i / state.block)];
      }
    };
  };
  return result;
}

QuantizedWeight eight_bit_weight(const ShardedWeights& folder, const std::string& layer) {
  const std::string numbers = layer + ".weight";
  const std::string scales = layer + ".SCB";
  const Shape shape = part_shape(folder, numbers, 2, DType::kInt8);
  const int64_t rows = shape[0];
  const int64_t columns = shape[1];
  if (part_shape(folder, scales, 1)[0] != rows) refuse_part(folder, scales, Shape{rows}.str());
  const std::string format = layer + ".weight_format";
  QuantizedWeight result = {
      .name = numbers, .shape = shape, .parts = {numbers, scales}, .unused = {}, .open = {}};
  if (const StoredTensor* order = folder.find(format)) {
    const Tensor code = read_whole(*order);
    const bool is_by_rows = code.dtype() == DType::kUInt8 && code.numel() == 1 &&
                            std::as_const(code).span<uint8_t>()[0] == 0;
    if (!is_by_rows) refuse_part(folder, format, "0: numbers in the order of rows");
    result.unused.push_back(format);
  }
  result.open = [rows, columns](std::span<const Tensor> parts) {
    WeightScales w = {.rows = rows, .columns = columns, .scales = floats_of(parts[1])};
    for (float& scale : w.scales) scale /= 127.0f;
    w.group_by(columns);
    const int8_t* first = parts[0].span<int8_t>().data();
    return rows_of(std::move(w), [owner = parts[0], first, columns](int64_t r, int64_t c) {
      return static_cast<float>(first[r * columns + c]);
    });
  };
  return result;
}

class BitsAndBytes final : public Quantization {
 public:
  std::vector<QuantizedWeight> weights(const ShardedWeights& folder) const override {
    std::vector<QuantizedWeight> found;
    for (const std::string& layer : layers_with(folder, ".weight.quant_map")) {
      found.push_back(four_bit_weight(folder, layer));
    }
    for (const std::string& layer : layers_with(folder, ".SCB")) {
      found.push_back(eight_bit_weight(folder, layer));
    }
    return found;
  }
};

}  // namespace

std::shared_ptr<const Quantization> read_bitsandbytes(HfBinding& fields) {
  fields.only("bnb_4bit_quant_storage", "uint8", "read are weights stored as uint8");
  return std::make_shared<BitsAndBytes>();
}

}  // namespace megatron

// MXFP4 (OCP Microscaling Formats 1.0), as GPT-OSS has it. A weight of all experts, [experts,
// columns, rows] among plain weights, is stored transposed, in blocks of 32 columns:
//   <weight>_blocks  uint8 [experts, rows, blocks, 16], the first of two columns in the low bits
//   <weight>_scales  uint8 [experts, rows, blocks], exponents of 2 above -127; 255 is NaN
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>

#include "megatron/core/error.h"
#include "megatron/interchange/hf/quantized/methods.h"
#include "megatron/interchange/hf/quantized/scales.h"

namespace megatron {
namespace {

constexpr int64_t kMxBlockBytes = 16;
// Sign, two bits of exponent, one of mantissa.
constexpr std::array<float, 16> kFp4Values = {0.0f,  0.5f,  1.0f,  1.5f,  2.0f,  3.0f,
                                              4.0f,  6.0f,  -0.0f, -0.5f, -1.0f, -1.5f,
                                              -2.0f, -3.0f, -4.0f, -6.0f};

// The factors of stored exponents.
std::array<float, 256> mx_scales() {
  std::array<float, 256> scales{};
  for (int i = 0; i < 255; ++i) scales[static_cast<size_t>(i)] = std::ldexp(1.0f, i - 127);
  scales[255] = std::numeric_limits<float>::quiet_NaN();
  return scales;
}

// The matrices of experts, [columns, rows] each. Tiles of rows keep reads and writes in the cache.
RowReader mx_experts(const Tensor& blocks, const Tensor& scales) {
  return [blocks, scales, factors = mx_scales()](int64_t begin, int64_t end, float* y) {
    constexpr int64_t kTileRows = 64;
    const int64_t rows = blocks.size(1);
    const int64_t bytes = blocks.size(2) * kMxBlockBytes;
    const auto* const numbers = blocks.view().as<uint8_t>() + begin * rows * bytes;
    const auto* const exponents = scales.view().as<uint8_t>() + begin * rows * blocks.size(2);
    for (int64_t first = 0; first < (end - begin) * rows; first += kTileRows) {
      const int64_t last = std::min(first + kTileRows, (end - begin) * rows);
      for (int64_t i = 0; i < bytes; ++i) {
        for (int64_t row = first; row < last; ++row) {
          const uint8_t both = numbers[row * bytes + i];
          const float scale = factors[exponents[row * blocks.size(2) + i / kMxBlockBytes]];
          float* const column = y + (row / rows * 2 * bytes + 2 * i) * rows + row % rows;
          column[0] = scale * kFp4Values[both & 15];
          column[rows] = scale * kFp4Values[both >> 4];
        }
      }
    }
  };
}

class Mxfp4 final : public Quantization {
 public:
  std::vector<QuantizedWeight> weights(const ShardedWeights& folder) const override {
    std::vector<QuantizedWeight> found;
    for (const std::string& name : layers_with(folder, "_blocks")) {
      const Shape blocks = part_shape(folder, name + "_blocks", 4, DType::kUInt8);
      const Shape scales = part_shape(folder, name + "_scales", 3, DType::kUInt8);
      if (blocks[3] != kMxBlockBytes) {
        refuse_part(folder, name + "_blocks", fmt::format("blocks of {} bytes", kMxBlockBytes));
      }
      const Shape want = {blocks[0], blocks[1], blocks[2]};
      if (!(scales == want)) refuse_part(folder, name + "_scales", want.str());
      found.push_back(
          {.name = name,
           .shape = {blocks[0], 2 * kMxBlockBytes * blocks[2], blocks[1]},
           .parts = {name + "_blocks", name + "_scales"},
           .unused = {},
           .open = [](std::span<const Tensor> parts) { return mx_experts(parts[0], parts[1]); }});
    }
    return found;
  }
};

}  // namespace

std::shared_ptr<const Quantization> read_mxfp4(HfBinding& /*fields*/) {
  return std::make_shared<Mxfp4>();
}

}  // namespace megatron

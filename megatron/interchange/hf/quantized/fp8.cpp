// FP8 with scales of blocks (DeepSeek-V3, arXiv:2412.19437, sec. 3.3.2). A weight [rows, columns]:
//   weight            E4M3 [rows, columns]
//   weight_scale_inv  [blocks of rows, blocks of columns], which weights are multiplied by; or one
//                     number, where weight_block_size is null
#include <fmt/format.h>

#include "megatron/core/error.h"
#include "megatron/interchange/hf/quantized/methods.h"
#include "megatron/interchange/hf/quantized/scales.h"

namespace megatron {
namespace {

class Fp8Blocks final : public Quantization {
 public:
  Fp8Blocks(int64_t rows, int64_t columns) : block_rows_(rows), block_columns_(columns) {}

  std::vector<QuantizedWeight> weights(const ShardedWeights& folder) const override {
    std::vector<QuantizedWeight> found;
    for (const std::string& name : layers_with(folder, "_scale_inv")) {
      const Shape shape = part_shape(folder, name, 2, DType::kFloat8E4M3);
      const std::string scale = name + "_scale_inv";
      const auto blocks = [](int64_t size, int64_t block) { return (size + block - 1) / block; };
      const int64_t rows = block_rows_ > 0 ? block_rows_ : shape[0];
      const int64_t columns = block_columns_ > 0 ? block_columns_ : shape[1];
      const Shape want = {blocks(shape[0], rows), blocks(shape[1], columns)};
      const StoredTensor& stored = *folder.find(scale);
      const bool is_fitting = block_rows_ > 0 ? stored.shape == want : stored.shape.numel() == 1;
      if (!is_fitting || !is_floating(stored.dtype)) {
        refuse_part(folder, scale, fmt::format("floating-point {}", want.str()));
      }
      QuantizedWeight weight{
          .name = name, .shape = shape, .parts = {name, scale}, .unused = {}, .open = {}};
      const std::string layer = name.substr(0, name.rfind('.'));
      for (const char* suffix : {".activation_scale", ".input_scale"}) {
        if (folder.find(layer + suffix) != nullptr) weight.unused.push_back(layer + suffix);
      }
      weight.open = [shape, rows, columns, want](std::span<const Tensor> parts) {
        WeightScales w{.rows = shape[0],
                       .columns = shape[1],
                       .groups = want[1],
                       .rows_per_scale = rows,
                       .scales = floats_of(parts[1]),
                       .zeros = {},
                       .group = {}};
        w.group_by(columns);
        const auto* const numbers = parts[0].view().as<Float8E4M3>();
        return rows_of(std::move(w),
                       [owner = parts[0], numbers, across = shape[1]](int64_t r, int64_t c) {
                         return static_cast<float>(numbers[r * across + c]);
                       });
      };
      found.push_back(std::move(weight));
    }
    return found;
  }

 private:
  int64_t block_rows_;  // 0: one scale
  int64_t block_columns_;
};

}  // namespace

std::shared_ptr<const Quantization> read_fp8(HfBinding& fields) {
  fields.only("fmt", "e4m3", "weights of E4M3 are read");
  const std::vector<double> block = fields.numbers("weight_block_size");
  const bool is_size = block.size() == 2 && block[0] >= 1 && block[1] >= 1 &&
                       block[0] <= static_cast<double>(kMaxHfSize) &&
                       block[1] <= static_cast<double>(kMaxHfSize);
  if (!block.empty() && !is_size) {
    fields.unsupported("weight_block_size",
                       "it must be two numbers, the rows and columns of a block");
    return nullptr;
  }
  return std::make_shared<Fp8Blocks>(is_size ? static_cast<int64_t>(block[0]) : 0,
                                     is_size ? static_cast<int64_t>(block[1]) : 0);
}

}  // namespace megatron

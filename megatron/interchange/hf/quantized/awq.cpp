// AWQ (Lin et al. 2024, arXiv:2306.00978) as AutoAWQ stores it, version "gemm". With `in` input and
// `out` output channels in `groups` of consecutive inputs, numbers of 4 bits:
//   qweight  int32 [in, out / 8]      numbers packed along the outputs
//   qzeros   int32 [groups, out / 8]  zero points, likewise
//   scales         [groups, out]
#include <fmt/format.h>

#include "megatron/interchange/hf/quantized/methods.h"
#include "megatron/interchange/hf/quantized/scales.h"

namespace megatron {
namespace {

constexpr int64_t kNumbersOfWord = 8;

// A word holds, from its lowest bits on, numbers 0, 2, 4, 6, 1, 3, 5, 7 of eight neighbours.
float awq_number(const int32_t* row, int64_t i) {
  const int64_t within = i % kNumbersOfWord;
  const int64_t place = within / 2 + within % 2 * 4;
  return packed_number(row + i / kNumbersOfWord, 1, place, 4);
}

QuantizedWeight awq_weight(const ShardedWeights& folder, const std::string& layer) {
  const std::string numbers = layer + ".qweight";
  const std::string zeros = layer + ".qzeros";
  const std::string scales = layer + ".scales";
  const Shape packed = part_shape(folder, numbers, 2, DType::kInt32);
  const Shape packed_zeros = part_shape(folder, zeros, 2, DType::kInt32);
  const int64_t in = packed[0];
  const int64_t words = packed[1];
  const int64_t out = words * kNumbersOfWord;
  const int64_t groups = packed_zeros[0];
  if (packed_zeros[1] != words || in % groups != 0) {
    refuse_part(folder, zeros, fmt::format("[groups of the {} inputs, {}]", in, words));
  }
  const Shape want = {groups, out};
  if (!(part_shape(folder, scales, 2) == want)) refuse_part(folder, scales, want.str());
  const auto open = [=](std::span<const Tensor> parts) {
    WeightScales w = {.rows = out, .columns = in, .groups = groups};
    w.scales = transposed(floats_of(parts[2]), out);
    const int32_t* packed_z = parts[1].span<int32_t>().data();
    for (int64_t r = 0; r < out; ++r) {
      for (int64_t g = 0; g < groups; ++g) w.zeros.push_back(awq_number(packed_z + g * words, r));
    }
    w.group_by(in / groups);
    const int32_t* first = parts[0].span<int32_t>().data();
    return rows_of(std::move(w), [owner = parts[0], first, words](int64_t r, int64_t c) {
      return awq_number(first + c * words, r);
    });
  };
  return {.name = layer + ".weight",
          .shape = {out, in},
          .parts = {numbers, zeros, scales},
          .unused = {},
          .open = open};
}

class Awq final : public Quantization {
 public:
  std::vector<QuantizedWeight> weights(const ShardedWeights& folder) const override {
    std::vector<QuantizedWeight> found;
    for (const std::string& layer : layers_with(folder, ".qweight")) {
      found.push_back(awq_weight(folder, layer));
    }
    return found;
  }
};

}  // namespace

std::shared_ptr<const Quantization> read_awq(HfBinding& fields) {
  fields.also_named("bits", "w_bit");
  fields.only("bits", int64_t{4}, "read are 4 bits");
  fields.only("zero_point", true, "read are weights with zero points");
  fields.also_named("version", "format");
  const std::string version = fields.text_of("version", "gemm");
  if (version != "gemm" && version != "GEMM") fields.unsupported("version", "read is gemm");
  return std::make_shared<Awq>();
}

}  // namespace megatron

// GPTQ (Frantar et al. 2023, arXiv:2210.17323) as AutoGPTQ and GPTQModel store it. With `in` input
// and `out` output channels in `groups` of inputs, numbers of 2, 3, 4 or 8 bits:
//   qweight  int32 [in bits / 32, out]      numbers packed along the inputs
//   qzeros   int32 [groups, out bits / 32]  zero points packed along the outputs
//   scales         [groups, out]
//   g_idx    int32 [in]                     the group of each input; consecutive ones without it
#include <fmt/format.h>

#include "megatron/core/error.h"
#include "megatron/interchange/hf/quantized/methods.h"
#include "megatron/interchange/hf/quantized/scales.h"

namespace megatron {
namespace {

// Compat: checkpoint_format "gptq" stores a zero point less one, "gptq_v2" the zero point itself.
class Gptq final : public Quantization {
 public:
  Gptq(int64_t group_size, float added_to_zeros)
      : group_size_(group_size), added_to_zeros_(added_to_zeros) {}

  std::vector<QuantizedWeight> weights(const ShardedWeights& folder) const override {
    std::vector<QuantizedWeight> found;
    for (const std::string& layer : layers_with(folder, ".qweight")) {
      found.push_back(weight(folder, layer));
    }
    return found;
  }

 private:
  QuantizedWeight weight(const ShardedWeights& folder, const std::string& layer) const {
    const std::string numbers = layer + ".qweight";
    const std::string zeros = layer + ".qzeros";
    const std::string scales = layer + ".scales";
    const std::string groups = layer + ".g_idx";
    const Shape packed = part_shape(folder, numbers, 2, DType::kInt32);
    const Shape packed_zeros = part_shape(folder, zeros, 2, DType::kInt32);
    const Shape scale_shape = part_shape(folder, scales, 2);
    const int64_t out = packed[1];
    // The bits may differ between layers.
    const int64_t bits = packed_zeros[1] * 32 / out;
    const bool is_known = bits == 2 || bits == 3 || bits == 4 || bits == 8;
    if (!is_known || bits * out != packed_zeros[1] * 32) {
      refuse_part(folder, zeros, fmt::format("zero points of 2, 3, 4 or 8 bits of {} rows", out));
    }
    const int64_t in = packed[0] * 32 / bits;
    const Shape want = {packed_zeros[0], out};
    if (!(scale_shape == want)) refuse_part(folder, scales, want.str());
    if (in * bits != packed[0] * 32) {
      refuse_part(folder, numbers, fmt::format("whole rows of {} bits", bits));
    }
    WeightScales w = {.rows = out, .columns = in, .groups = packed_zeros[0]};
    QuantizedWeight result = {.name = layer + ".weight",
                              .shape = {out, in},
                              .parts = {numbers, zeros, scales},
                              .unused = {},
                              .open = {}};
    const bool has_groups = folder.find(groups) != nullptr;
    if (has_groups) {
      if (part_shape(folder, groups, 1)[0] != in) {
        refuse_part(folder, groups, fmt::format("{} groups", in));
      }
      result.parts.push_back(groups);
    } else {
      const int64_t size = group_size_ > 0 ? group_size_ : in;
      if ((in + size - 1) / size != w.groups) {
        refuse_part(folder, scales, fmt::format("groups of group_size {}", size));
      }
      w.group_by(size);
    }
    const std::string file = folder.path().string();
    result.open = [=, added = added_to_zeros_](std::span<const Tensor> parts) {
      WeightScales filled = w;
      filled.scales = transposed(floats_of(parts[2]), out);
      const int32_t* packed_z = parts[1].span<int32_t>().data();
      for (int64_t r = 0; r < out; ++r) {
        for (int64_t g = 0; g < filled.groups; ++g) {
          const int32_t* row = packed_z + g * out * bits / 32;
          filled.zeros.push_back(packed_number(row, 1, r, bits) + added);
        }
      }
      if (has_groups) filled.group = integers_of(parts[3]);
      for (const int64_t group : filled.group) {
        if (group >= 0 && group < filled.groups) continue;
        throw FormatError(fmt::format("{}: {} has group {}, but there are {}; copy the file again",
                                      file, groups, group, filled.groups));
      }
      const int32_t* words = parts[0].span<int32_t>().data();
      return rows_of(std::move(filled), [owner = parts[0], words, out, bits](int64_t r, int64_t c) {
        return packed_number(words + r, out, c, bits);
      });
    };
    return result;
  }

  int64_t group_size_;
  float added_to_zeros_;
};

}  // namespace

std::shared_ptr<const Quantization> read_gptq(HfBinding& fields) {
  constexpr const char* kFormat = "checkpoint_format";
  fields.also_named(kFormat, "format");
  const std::string format = fields.text_of(kFormat, "gptq");
  if (format != "gptq" && format != "gptq_v2")
    fields.unsupported(kFormat, "read are gptq, gptq_v2");
  fields.only("is_marlin_format", false, "read is the format gptq");
  const double group_size = fields.number_of("group_size", -1);
  return std::make_shared<Gptq>(static_cast<int64_t>(group_size), format == "gptq" ? 1.0f : 0.0f);
}

}  // namespace megatron

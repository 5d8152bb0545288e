// The package compressed-tensors. A weight [rows, columns] has scales of the whole tensor, of each
// row, of groups of columns in each row, or of blocks:
//   weight              int8 or FP8 [rows, columns]
//   weight_scale        [1], [rows, 1], [rows, groups] or [blocks of rows, blocks of columns]
//   weight_zero_point   int8, the shape of the scales; missing if symmetric
// or, in the format pack-quantized, numbers of 4 or 8 bits, 0 stored as 8 or 128:
//   weight_packed       int32 [rows, ceil(columns bits / 32)]
//   weight_shape        [2]
//   weight_scale        [1], [rows, 1] or [rows, groups]
//   weight_zero_point   int32 [ceil(rows bits / 32), groups], packed along the rows
//   weight_g_idx        [columns], the group of each column; consecutive ones without it
#include <fmt/format.h>

#include <optional>

#include "megatron/core/error.h"
#include "megatron/interchange/hf/quantized/methods.h"
#include "megatron/interchange/hf/quantized/scales.h"

namespace megatron {
namespace {

// Settings of all groups of layers. A layer's tensors tell its group.
struct CompressedSettings {
  std::vector<int64_t> packed_bits;
  int64_t block_rows = 0;  // 0: no blocks
  int64_t block_columns = 0;
};

int64_t blocks_of(int64_t size, int64_t block) { return (size + block - 1) / block; }

// The element of a packed number.
float signed_number(const int32_t* words, int64_t stride, int64_t i, int64_t bits) {
  return packed_number(words, stride, i, bits) - static_cast<float>(int64_t{1} << (bits - 1));
}

class CompressedTensors final : public Quantization {
 public:
  explicit CompressedTensors(CompressedSettings settings) : settings_(std::move(settings)) {}

  std::vector<QuantizedWeight> weights(const ShardedWeights& folder) const override {
    std::vector<QuantizedWeight> found;
    for (const std::string& layer : layers_with(folder, ".weight_packed")) {
      found.push_back(packed(folder, layer));
    }
    for (const std::string& layer : layers_with(folder, ".weight_scale")) {
      if (folder.find(layer + ".weight_packed") != nullptr) continue;
      found.push_back(unpacked(folder, layer));
    }
    return found;
  }

 private:
  // A weight with its shape and scales, before the numbers.
  struct Scaled {
    QuantizedWeight weight;
    WeightScales scales;
    std::optional<size_t> zeros;  // their places in weight.parts
    std::optional<size_t> groups;
    std::string layer;

    // Scales, zero points if they are not packed, and groups of columns.
    WeightScales filled(std::span<const Tensor> parts, const std::string& file) const {
      WeightScales w = scales;
      w.scales = floats_of(parts[1]);
      if (groups) w.group = integers_of(parts[*groups]);
      for (const int64_t group : w.group) {
        if (group >= 0 && group < w.groups) continue;
        throw FormatError(
            fmt::format("{}: {}.weight_g_idx has group {}, but there are {}; copy the file again",
                        file, layer, group, w.groups));
      }
      return w;
    }
  };

  // The scales of the weight whose elements are the tensor `numbers`.
  Scaled scaled(const ShardedWeights& folder, const std::string& layer, const std::string& numbers,
                int64_t rows, int64_t columns) const {
    const std::string name = layer + ".weight_scale";
    const StoredTensor& scale = *folder.find(name);
    const bool is_matrix = scale.shape.rank() == 2;
    const int64_t down = is_matrix || scale.shape.rank() == 1 ? scale.shape[0] : 1;
    const int64_t across = is_matrix ? scale.shape[1] : 1;
    Scaled result;
    result.layer = layer;
    result.weight = {.name = layer + ".weight",
                     .shape = {rows, columns},
                     .parts = {numbers, name},
                     .unused = {},
                     .open = {}};
    WeightScales& w = result.scales;
    w = {.rows = rows, .columns = columns, .groups = across};
    const auto add = [&](const char* suffix) -> std::optional<size_t> {
      if (folder.find(layer + suffix) == nullptr) return std::nullopt;
      result.weight.parts.push_back(layer + suffix);
      return result.weight.parts.size() - 1;
    };
    result.zeros = add(".weight_zero_point");
    const CompressedSettings& s = settings_;
    const bool is_blocks = s.block_rows > 0 && down == blocks_of(rows, s.block_rows) &&
                           across == blocks_of(columns, s.block_columns);
    if (scale.shape.numel() == 1) {
      w.rows_per_scale = rows;
      w.group_by(columns);
    } else if (is_blocks) {
      w.rows_per_scale = s.block_rows;
      w.group_by(s.block_columns);
    } else if (down == rows && across > 0 && columns % across == 0) {
      result.groups = add(".weight_g_idx");
      if (!result.groups) w.group_by(columns / across);
    } else {
      refuse_part(folder, name,
                  fmt::format("one scale, or scales of the {} rows, of groups of the {} columns in "
                              "them, or of blocks",
                              rows, columns));
    }
    if (result.groups && part_shape(folder, layer + ".weight_g_idx", 1)[0] != columns) {
      refuse_part(folder, layer + ".weight_g_idx", fmt::format("{} groups", columns));
    }
    for (const char* suffix : {".input_scale", ".input_zero_point", ".input_global_scale",
                               ".output_scale", ".output_zero_point", ".k_scale", ".v_scale"}) {
      if (folder.find(layer + suffix) != nullptr) result.weight.unused.push_back(layer + suffix);
    }
    return result;
  }

  QuantizedWeight unpacked(const ShardedWeights& folder, const std::string& layer) const {
    const std::string numbers = layer + ".weight";
    const Shape shape = part_shape(folder, numbers, 2);
    const DType dtype = folder.find(numbers)->dtype;
    if (dtype != DType::kInt8 && !is_float8(dtype)) refuse_part(folder, numbers, "int8 or FP8");
    Scaled made = scaled(folder, layer, numbers, shape[0], shape[1]);
    if (made.zeros) {
      const std::string& zeros = made.weight.parts[*made.zeros];
      const StoredTensor& scale = *folder.find(layer + ".weight_scale");
      if (folder.find(zeros)->shape.numel() != scale.shape.numel()) {
        refuse_part(folder, zeros, fmt::format("{} of int8", scale.shape.str()));
      }
    }
    QuantizedWeight weight = made.weight;
    weight.open = [made, dtype, file = folder.path().string(),
                   columns = shape[1]](std::span<const Tensor> parts) -> RowReader {
      WeightScales w = made.filled(parts, file);
      if (made.zeros) w.zeros = floats_of(parts[*made.zeros]);
      const auto read = [&]<class T>(const T* from) {
        return rows_of(std::move(w), [owner = parts[0], from, columns](int64_t r, int64_t c) {
          return static_cast<float>(from[r * columns + c]);
        });
      };
      if (dtype == DType::kInt8) return read(parts[0].view().as<int8_t>());
      if (dtype == DType::kFloat8E4M3) return read(parts[0].view().as<Float8E4M3>());
      return read(parts[0].view().as<Float8E5M2>());
    };
    return weight;
  }

  QuantizedWeight packed(const ShardedWeights& folder, const std::string& layer) const {
    const std::string numbers = layer + ".weight_packed";
    const std::string sizes = layer + ".weight_shape";
    const Shape words = part_shape(folder, numbers, 2, DType::kInt32);
    if (part_shape(folder, sizes, 1)[0] != 2) refuse_part(folder, sizes, "two sizes");
    const std::string scales = layer + ".weight_scale";
    if (folder.find(scales) == nullptr) refuse_part(folder, scales, "scales of the weight");
    const std::vector<int64_t> size = integers_of(read_whole(*folder.find(sizes)));
    const int64_t rows = size[0];
    const int64_t columns = size[1];
    int64_t bits = 0;
    for (const int64_t known : settings_.packed_bits) {
      if (columns > 0 && columns <= kMaxHfSize && blocks_of(columns * known, 32) == words[1]) {
        bits = known;
      }
    }
    if (rows != words[0] || bits == 0) {
      refuse_part(folder, numbers,
                  fmt::format("packed numbers of a weight [{}, {}]", rows, columns));
    }
    Scaled made = scaled(folder, layer, numbers, rows, columns);
    const Shape want = {blocks_of(rows * bits, 32), made.scales.groups};
    if (made.zeros) {
      const std::string& zeros = made.weight.parts[*made.zeros];
      if (!(part_shape(folder, zeros, 2, DType::kInt32) == want)) {
        refuse_part(folder, zeros, want.str());
      }
    }
    QuantizedWeight weight = made.weight;
    weight.unused.push_back(sizes);
    weight.open = [made, bits, rows, stride = words[1],
                   file = folder.path().string()](std::span<const Tensor> parts) {
      WeightScales w = made.filled(parts, file);
      const int64_t rows_of_zeros = blocks_of(rows, w.rows_per_scale);
      for (int64_t r = 0; made.zeros && r < rows_of_zeros; ++r) {
        const int32_t* first = parts[*made.zeros].span<int32_t>().data();
        for (int64_t g = 0; g < w.groups; ++g) {
          w.zeros.push_back(signed_number(first + g, w.groups, r, bits));
        }
      }
      const int32_t* first = parts[0].span<int32_t>().data();
      return rows_of(std::move(w), [owner = parts[0], first, stride, bits](int64_t r, int64_t c) {
        return signed_number(first + r * stride, 1, c, bits);
      });
    };
    return weight;
  }

  CompressedSettings settings_;
};

void read_weights(HfBinding& weights, bool is_packed, CompressedSettings& settings) {
  const int64_t bits = weights.size_of("num_bits", 8);
  if (is_packed && bits != 4 && bits != 8) weights.unsupported("num_bits", "read are 4 and 8");
  if (!is_packed && bits != 8) weights.unsupported("num_bits", "read are 8 in this format");
  settings.packed_bits.push_back(bits);
  const std::vector<double> block = weights.numbers("block_structure");
  if (block.empty()) return;
  if (block.size() != 2 || block[0] < 1 || block[1] < 1) {
    return weights.unsupported("block_structure", "expected two sizes");
  }
  settings.block_rows = static_cast<int64_t>(block[0]);
  settings.block_columns = static_cast<int64_t>(block[1]);
}

}  // namespace

std::shared_ptr<const Quantization> read_compressed_tensors(HfBinding& fields) {
  CompressedSettings settings;
  const auto read_format = [](HfBinding& f, const std::string& otherwise) {
    std::string format = f.text_of("format", otherwise.c_str());
    const bool is_known = format == "pack-quantized" || format == "int-quantized" ||
                          format == "float-quantized" || format == "naive-quantized" ||
                          format == "mixed-precision" || format == "dense";
    if (!is_known) {
      f.unsupported("format",
                    "read are pack-quantized, int-quantized, float-quantized, naive-quantized");
    }
    return format;
  };
  const std::string format = read_format(fields, "dense");
  if (HfBinding* groups = fields.object("config_groups")) {
    for (HfBinding* group : groups->objects()) {
      const std::string own = read_format(*group, format);
      if (HfBinding* weights = group->object("weights")) {
        read_weights(*weights, own == "pack-quantized", settings);
      }
    }
  }
  for (const char* name : {"sparsity_config", "transform_config"}) {
    HfBinding* object = fields.object(name);
    if (object == nullptr || object->is_empty()) continue;
    if (object->text_of("format", "") != "dense") {
      fields.unsupported(name, "sparse and transformed weights are not read");
    }
  }
  return std::make_shared<CompressedTensors>(std::move(settings));
}

}  // namespace megatron

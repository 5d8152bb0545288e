#include "megatron/run/upcycling.h"

#include <fmt/format.h>

#include <cmath>
#include <optional>
#include <string>
#include <utility>

#include "megatron/core/error.h"
#include "megatron/tensor/tensor.h"

namespace megatron {
namespace {

constexpr std::string_view kMlp = ".mlp.linear_fc";

// The layer of a tensor of an MLP: "decoder.layers.3.mlp.linear_fc1.weight"; nothing of others.
std::optional<int64_t> layer_of_mlp(const std::string& name) {
  constexpr std::string_view kLayers = "decoder.layers.";
  if (!name.starts_with(kLayers) || name.find(kMlp) == std::string::npos) return std::nullopt;
  return std::stoll(name.substr(kLayers.size()));
}

// Factor of the experts' weights. A token gives its k experts weights whose sum is 1, or with
// pre-softmax k / E in the mean, and each adds 1/g of the MLP; the matrices share the factor.
double scale_of_weights(const TransformerConfig& config, int64_t granularity) {
  const auto g = static_cast<double>(granularity);
  const double output = config.moe_router_pre_softmax
                            ? static_cast<double>(config.num_experts) * g /
                                  static_cast<double>(config.moe_router_topk)
                            : g;
  const bool is_cubic = config.is_gated() || config.activation == Activation::kSquaredRelu;
  return std::pow(output, is_cubic ? 1.0 / 3.0 : 0.5);
}

// The tensor of all experts. An axis of `size` elements in `parts` stacked parts (gate and up) is
// divided among g experts; size 0: each has the whole.
Tensor of_experts(const Tensor& whole, int64_t experts, int64_t g, int axis, int64_t parts,
                  double scale) {
  const int64_t rows = whole.shape().rank() == 1 ? 1 : whole.size(0);
  const int64_t cols = whole.numel() / rows;
  const bool is_divided = axis >= 0;
  const bool by_rows = is_divided && axis == 0 && whole.shape().rank() == 2;
  const int64_t own_rows = by_rows ? rows / g : rows;
  const int64_t own_cols = is_divided && !by_rows ? cols / g : cols;
  const Shape shape =
      whole.shape().rank() == 1 ? Shape{experts, own_cols} : Shape{experts, own_rows, own_cols};
  Tensor all(shape, DType::kFloat32, Stream{});
  const auto from = whole.span<float>();
  const auto to = all.span<float>();
  // The place in the whole of an expert's row or column: in part p of `parts` the i-th of `own`.
  const auto place = [&](int64_t own, int64_t index, int64_t expert) {
    const int64_t in_part = own / parts;
    return index / in_part * in_part * g + expert % g * in_part + index % in_part;
  };
  for (int64_t e = 0; e < experts; ++e) {
    for (int64_t r = 0; r < own_rows; ++r) {
      const int64_t row = by_rows ? place(own_rows, r, e) : r;
      for (int64_t c = 0; c < own_cols; ++c) {
        const int64_t col = is_divided && !by_rows ? place(own_cols, c, e) : c;
        to[static_cast<size_t>((e * own_rows + r) * own_cols + c)] = static_cast<float>(
            static_cast<double>(from[static_cast<size_t>(row * cols + col)]) * scale);
      }
    }
  }
  return all;
}

StoredTensor expert_tensor(const StoredTensor& dense, const std::string& name,
                           const TransformerConfig& config, int64_t g) {
  const bool is_fc1 = name.find("linear_fc1") != std::string::npos;
  const bool is_bias = name.ends_with(".bias");
  // Parts of fc2 are columns; each expert has its whole bias, once in the weighted sum.
  const int axis = is_fc1 ? 0 : is_bias ? -1 : 1;
  const int64_t parts = is_fc1 && config.is_gated() ? 2 : 1;
  const double scale = is_bias && !is_fc1 ? 1 : scale_of_weights(config, g);
  if (axis >= 0) {
    const int64_t width = dense.shape[axis] / parts;
    if (width != g * config.moe_ffn_hidden_size) {
      throw FormatError(
          fmt::format("{}: has {} rows or columns, not --moe-upcycling-granularity {} times "
                      "--moe-ffn-hidden-size {}; change one of them",
                      name, width, g, config.moe_ffn_hidden_size));
    }
  }
  const auto own = [&](int at) { return at == axis ? dense.shape[at] / g : dense.shape[at]; };
  const Shape shape =
      is_bias ? Shape{config.num_experts, own(0)} : Shape{config.num_experts, own(0), own(1)};
  return tensor_in_one_piece(
      shape, dense.dtype, [dense, experts = config.num_experts, g, axis, parts, scale] {
        const Tensor whole = cast(read_whole(dense), DType::kFloat32);
        const Tensor all = cast(of_experts(whole, experts, g, axis, parts, scale), dense.dtype);
        return FileElements{all.view(), all};
      });
}

}  // namespace

bool is_dense_source(const CheckpointContents& contents, const TransformerConfig& config) {
  if (!config.has_experts()) return false;
  for (const auto& [name, tensor] : contents.sections.at(kWeightsSection)) {
    if (name.find(".mlp.router.") != std::string::npos) return false;
  }
  return true;
}

void upcycle(CheckpointContents& contents, const TransformerConfig& config, int64_t granularity) {
  StoredSection weights;
  for (auto& [name, tensor] : contents.sections.at(kWeightsSection)) {
    const std::optional<int64_t> layer = layer_of_mlp(name);
    if (!layer || !config.has_experts(*layer)) {
      weights.emplace(name, std::move(tensor));
      continue;
    }
    std::string of_experts = name;
    of_experts.insert(name.find(kMlp) + std::string_view(".mlp").size(), ".experts");
    weights.emplace(of_experts, expert_tensor(tensor, name, config, granularity));
  }
  contents.sections = {{kWeightsSection, std::move(weights)}};
  contents.hashes.clear();
}

bool is_new_of_experts(std::string_view name) {
  return name.find(".mlp.router.") != std::string_view::npos;
}

void share_router_rows(std::span<const Module* const> chunks, int64_t granularity) {
  for (const Module* chunk : chunks) {
    for (const Parameter& parameter : named_parameters(*chunk)) {
      if (!is_new_of_experts(parameter.name)) continue;
      Tensor rows = parameter.variable.data();
      for (int64_t e = rows.size(0) - 1; e >= 0; --e) {
        Tensor row = rows.slice(e, 1);
        if (e / granularity != e) copy_into(row, copied(rows.slice(e / granularity, 1)));
      }
    }
  }
}

}  // namespace megatron

#include "megatron/interchange/hf/families/experts.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <vector>

namespace megatron {
namespace {

constexpr NameRule kExpertNames[] = {
    {"decoder.layers.{i}.mlp.router.weight", {"model.layers.{i}.mlp.gate.weight"}},
    {"decoder.layers.{i}.mlp.experts.linear_fc1.weight",
     {"model.layers.{i}.mlp.experts.{e}.gate_proj.weight",
      "model.layers.{i}.mlp.experts.{e}.up_proj.weight"},
     Layout::kExpertGateUp},
    {"decoder.layers.{i}.mlp.experts.linear_fc2.weight",
     {"model.layers.{i}.mlp.experts.{e}.down_proj.weight"},
     Layout::kExperts},
};

// Our setting: 1 for each layer with experts, or empty where all have.
void set_sparse_layers(TransformerConfig& config, std::vector<int> layers) {
  const bool is_everywhere = std::ranges::find(layers, 0) == layers.end();
  config.moe_layer_freq = is_everywhere ? std::vector<int>() : std::move(layers);
}

}  // namespace

void bind_hf_router_losses(HfBinding& fields) {
  static constexpr const char* kUnused[] = {"aux_loss_alpha", "seq_aux"};
  fields.ignore(kUnused);
  constexpr const char* kSwitch = "output_router_logits";
  constexpr const char* kWeight = "router_aux_loss_coef";
  fields.ignore(std::array{kSwitch, kWeight});
  // Compat: transformers 5.24 adds a product of means over all layers, Megatron-LM's loss is a mean
  // over layers of products.
  if (!fields.reads() || !fields.flag_of(kSwitch, false)) return;
  fields.warns(
      fmt::format("{} is true: the loss by which transformers balances experts ({} {}) is left out "
                  "of training; "
                  "--moe-aux-loss-coeff adds Megatron-LM's",
                  kSwitch, kWeight, fields.number_of(kWeight, 0.001)));
}

void bind_hf_sparse_layers(HfBinding& fields, TransformerConfig& config) {
  constexpr const char* kDense = "mlp_only_layers";
  fields.bind(config.moe_layer_freq);
  int64_t step = 1;
  fields.size("decoder_sparse_step", step, step);
  if (!fields.reads()) {
    std::vector<int> dense;
    for (int i = 0; i < static_cast<int>(config.num_layers); ++i) {
      if (!config.has_experts(i)) dense.push_back(i);
    }
    return fields.write_sizes(kDense, dense);
  }
  const std::vector<double> dense = fields.numbers(kDense);
  std::vector<int> layers;
  for (int64_t i = 0; i < config.num_layers; ++i) {
    const bool is_dense = std::ranges::find(dense, static_cast<double>(i)) != dense.end();
    layers.push_back(!is_dense && (i + 1) % step == 0 ? 1 : 0);
  }
  set_sparse_layers(config, std::move(layers));
}

void bind_hf_first_dense_layers(HfBinding& fields, TransformerConfig& config, int64_t otherwise) {
  fields.bind(config.moe_layer_freq);
  int64_t dense = 0;
  while (!fields.reads() && dense < config.num_layers && !config.has_experts(dense)) dense += 1;
  for (int64_t i = dense; i < config.num_layers; ++i) {
    fields.expect(config.has_experts(i), "dense layers behind those with experts");
  }
  fields.size_from_zero("first_k_dense_replace", dense, otherwise);
  if (!fields.reads()) return;
  std::vector<int> layers;
  for (int64_t i = 0; i < config.num_layers; ++i) layers.push_back(i < dense ? 0 : 1);
  set_sparse_layers(config, std::move(layers));
}

std::span<const NameRule> hf_expert_names() { return kExpertNames; }

}  // namespace megatron

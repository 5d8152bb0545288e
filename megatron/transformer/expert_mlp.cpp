#include "megatron/transformer/expert_mlp.h"

#include <cmath>
#include <string>
#include <vector>

#include "megatron/nn/fp8_layer.h"
#include "megatron/ops/elementwise.h"
#include "megatron/ops/linear.h"
#include "megatron/parallel/expert_ranks.h"
#include "megatron/parallel/tensor/mappings.h"
#include "megatron/transformer/init.h"
#include "megatron/transformer/lora.h"
#include "megatron/transformer/recomputed_region.h"

namespace megatron {
namespace {

comm::Group group_of(const TensorParallel& tp, comm::Group ExpertParallel::*group) {
  return tp.experts == nullptr ? comm::Group() : *tp.experts.*group;
}

// Normal, as A of a ColumnParallelLora.
ParameterInfo adapter_info(int64_t in) {
  return {.role = ParameterRole::kMatrix,
          .init = Init::normal(1.0 / std::sqrt(3.0 * static_cast<double>(in))),
          .is_adapter = true};
}

// A dense MLP that reads every token. Inside of a recomputed part nothing is recomputed.
LayerConfig shared_expert_config(LayerConfig config) {
  std::vector<std::string>& modules = config.recompute_modules;
  if (config.recomputes("moe")) {
    modules.clear();
  } else if (config.recomputes("shared_experts")) {
    modules = {"mlp"};
  } else {
    std::erase(modules, "mlp");
  }
  config.ffn_hidden_size = config.moe_shared_expert_intermediate_size;
  config.add_bias_linear = false;
  return config;
}

}  // namespace

Experts::Experts(const LayerConfig& config, const TensorParallel& tp, Stream stream)
    : options_{.activation = config.activation, .num_experts = config.num_experts},
      experts_{.group = group_of(tp, &ExpertParallel::experts), .sequence_parallel = true},
      shares_{.group = group_of(tp, &ExpertParallel::shares), .sequence_parallel = true},
      has_equal_tokens_(tp.size() > 1 && !tp.sequence_parallel) {
  const int64_t count = config.num_experts / experts_.size();
  const int64_t inner = config.moe_ffn_hidden_size / shares_.size();
  const int64_t widths = config.is_gated() ? 2 : 1;
  options_.first_expert = experts_.rank() * count;
  options_.weighs_input = config.moe_apply_probs_on_input;
  options_.adds_fc2_bias = shares_.rank() == 0;
  const Placement placement = {config.params_dtype, stream};
  const auto add = [&](const std::string& name, const Shape& shape, ParameterInfo info,
                       int shared_axis, int64_t parts) {
    info.gradient_axes = kExpertDataAxes;
    info.sharding.axes.push_back({.axis = 0,
                                  .index = experts_.rank(),
                                  .count = experts_.size(),
                                  .along = MeshAxis::kExpert});
    if (shared_axis > 0) {
      info.sharding.axes.push_back({.axis = shared_axis,
                                    .index = shares_.rank(),
                                    .count = shares_.size(),
                                    .parts = parts,
                                    .along = MeshAxis::kExpertTensor});
    } else if (info.is_adapter && shares_.size() > 1) {
      // Each share adds the products of its own columns or rows.
      info.gradient_axes = info.gradient_axes.with(MeshAxis::kExpertTensor);
    }
    return add_parameter(name, shape, info, placement);
  };
  const bool has_bias = config.add_bias_linear;
  const int64_t hidden = config.hidden_size;
  matrices_.fc1 = add("linear_fc1.weight", {count, widths * inner, hidden},
                      {.role = ParameterRole::kMatrix, .init = input_init(config)}, 1, widths);
  if (has_bias) {
    matrices_.fc1_bias =
        add("linear_fc1.bias", {count, widths * inner}, {.role = ParameterRole::kBias}, 1, widths);
  }
  matrices_.fc2 = add("linear_fc2.weight", {count, hidden, inner},
                      {.role = ParameterRole::kMatrix, .init = output_init(config)}, 2, 1);
  if (has_bias) {
    matrices_.fc2_bias =
        add("linear_fc2.bias", {count, hidden}, {.role = ParameterRole::kBias}, 0, 1);
  }
  // Adapters are divided as the matrix that they adapt (parallel/tensor/lora.h).
  const auto adapter = [&](const std::string& layer, int64_t in, int64_t out, int shared_axis,
                           int64_t parts) -> ExpertAdapter {
    const LoraOptions lora = lora_of(config, layer);
    if (lora.rank == 0) return {};
    const bool divides_rows = shared_axis == 1;
    const int64_t whole_in = divides_rows ? in : in * shares_.size();
    const std::string name = layer + "." + kAdapter + ".";
    return {
        .a = add(name + kLoraA, {count, lora.rank, in}, adapter_info(whole_in),
                 divides_rows ? 0 : 2, 1),
        .b = add(name + kLoraB, {count, out, lora.rank},
                 {.role = ParameterRole::kMatrix, .is_adapter = true}, divides_rows ? 1 : 0, parts),
        .scale = static_cast<float>(lora.scale)};
  };
  matrices_.fc1_adapter = adapter("linear_fc1", hidden, widths * inner, 1, widths);
  matrices_.fc2_adapter = adapter("linear_fc2", inner, hidden, 2, 1);
  if (!config.fp8.is_on()) return;
  options_.fp8_gradients = fp8_dtype(config.fp8, Fp8Tensor::kGradient);
  fc1_fp8_ = std::make_unique<Fp8StackedWeight>(matrices_.fc1, stream);
  fc2_fp8_ = std::make_unique<Fp8StackedWeight>(matrices_.fc2, stream);
  add_child("linear_fc1.fp8", *fc1_fp8_);
  add_child("linear_fc2.fp8", *fc2_fp8_);
}

ExpertMatrices Experts::matrices() const {
  ExpertMatrices all = matrices_;
  if (fc1_fp8_) all.fc1_fp8 = fc1_fp8_->stack();
  if (fc2_fp8_) all.fc2_fp8 = fc2_fp8_->stack();
  return all;
}

Variable Experts::forward(const Variable& x, const RoutedTokens& routed, bool is_generation) const {
  const bool has_all_tokens = has_equal_tokens_ || experts_.size() * shares_.size() == 1;
  if (is_generation && has_all_tokens) {
    const Tensor sums =
        expert_mlp_of_few_tokens(x.data(), routed.ids, routed.weights.data(), matrices_, options_);
    if (sums.defined()) {
      return reduce_from_tensor_region(reduce_from_tensor_region(Variable(sums), shares_),
                                       experts_);
    }
  }
  if (has_equal_tokens_) {
    const auto on_all = [&](const Variable& own) {
      return copy_to_tensor_region(copy_to_tensor_region(own, experts_), shares_);
    };
    const Variable sums =
        expert_mlp(on_all(x), routed.ids, on_all(routed.weights), matrices(), options_);
    return reduce_from_tensor_region(reduce_from_tensor_region(sums, shares_), experts_);
  }
  return experts_of_ranks(x, routed.ids, routed.weights, matrices(), options_, experts_.group,
                          shares_.group);
}

ExpertMlp::ExpertMlp(const LayerConfig& config, const std::string& name, const TensorParallel& tp,
                     Stream stream, int64_t layer)
    : is_recomputed_(config.recomputes("moe")),
      router_(config, name + ".router", tp, stream, layer),
      experts_(config, tp, stream) {
  add_child("router", router_);
  add_child("experts", experts_);
  if (config.moe_shared_expert_intermediate_size == 0) return;
  shared_experts_.emplace(shared_expert_config(config), name + ".shared_experts", tp, stream);
  add_child("shared_experts", *shared_experts_);
  if (!config.moe_shared_expert_gate) return;
  gate_weight_ = add_parameter("shared_experts.gate_weight", {1, config.hidden_size},
                               {.role = ParameterRole::kMatrix, .init = input_init(config)},
                               placement_of(config, tp, stream));
}

BiasedOutput ExpertMlp::forward(const Variable& x, const ForwardContext& context) const {
  if (!is_recomputed_) return {output(x, context), Variable()};
  const auto region = [this](const Variable& in, const ForwardContext& inside) {
    return output(in, inside);
  };
  return {recompute_region(region, x, context), Variable()};
}

Variable ExpertMlp::output(const Variable& x, const ForwardContext& context) const {
  const Shape rows = {x.data().numel() / x.size(-1), x.size(-1)};
  Variable routed = reshape(experts_.forward(reshape(x, rows), router_.forward(x, context),
                                             context.decode.cached != nullptr),
                            x.shape());
  if (!shared_experts_) return routed;
  ForwardContext whole = context;
  whole.decode = {};  // its output is no sum that the next norm computes
  Variable shared = shared_experts_->forward(x, whole).y;
  if (gate_weight_.defined()) {
    const Variable gate = cast(linear(reshape(x, rows), gate_weight_, Variable()), DType::kFloat32);
    const Tensor first = zeros({rows[0], 1}, DType::kInt32, x.stream());
    const Variable weights = expert_weights(gate, first, {.score = RouterScore::kSigmoid});
    shared = reshape(weighed_rows(reshape(shared, rows), weights), x.shape());
  }
  return add(routed, shared);
}

}  // namespace megatron

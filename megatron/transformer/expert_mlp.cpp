#include "megatron/transformer/expert_mlp.h"

#include "megatron/ops/elementwise.h"
#include "megatron/ops/linear.h"
#include "megatron/parallel/tensor/mappings.h"
#include "megatron/transformer/init.h"

namespace megatron {
namespace {

comm::Group group_of(const TensorParallel& tp, comm::Group ExpertParallel::*group) {
  return tp.experts == nullptr ? comm::Group() : *tp.experts.*group;
}

// A dense MLP that reads every token.
LayerConfig shared_expert_config(LayerConfig config) {
  config.ffn_hidden_size = config.moe_shared_expert_intermediate_size;
  config.add_bias_linear = false;
  return config;
}

}  // namespace

Experts::Experts(const LayerConfig& config, const TensorParallel& tp, Stream stream)
    : options_{.activation = config.activation, .num_experts = config.num_experts},
      experts_{.group = group_of(tp, &ExpertParallel::experts), .sequence_parallel = true},
      shares_{.group = group_of(tp, &ExpertParallel::shares), .sequence_parallel = true} {
  const int64_t count = config.num_experts / experts_.size();
  const int64_t inner = config.moe_ffn_hidden_size / shares_.size();
  const int64_t widths = config.is_gated() ? 2 : 1;
  options_.first_expert = experts_.rank() * count;
  options_.weighs_input = config.moe_apply_probs_on_input;
  options_.adds_fc2_bias = shares_.rank() == 0;
  const Placement placement = {config.params_dtype, stream};
  const auto add = [&](const char* name, const Shape& shape, ParameterRole role, const Init& init,
                       int shared_axis, int64_t parts) {
    ParameterInfo info{.role = role, .init = init, .gradient_axes = kExpertDataAxes};
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
    }
    return add_parameter(name, shape, info, placement);
  };
  const auto role = ParameterRole::kMatrix;
  const bool has_bias = config.add_bias_linear;
  const int64_t hidden = config.hidden_size;
  matrices_.fc1 = add("linear_fc1.weight", {count, widths * inner, hidden}, role,
                      input_init(config), 1, widths);
  if (has_bias) {
    matrices_.fc1_bias = add("linear_fc1.bias", {count, widths * inner}, ParameterRole::kBias,
                             Init::zeros(), 1, widths);
  }
  matrices_.fc2 = add("linear_fc2.weight", {count, hidden, inner}, role, output_init(config), 2, 1);
  if (has_bias) {
    matrices_.fc2_bias =
        add("linear_fc2.bias", {count, hidden}, ParameterRole::kBias, Init::zeros(), 0, 1);
  }
}

// Every rank of the two groups gets the tokens of all, and adds what its experts make of them.
Variable Experts::forward(const Variable& x, const RoutedTokens& routed) const {
  const auto gathered = [&](const Variable& own) {
    return gather_from_sequence_region(gather_from_sequence_region(own, experts_), shares_);
  };
  const Tensor ids =
      gathered_sequence(gathered_sequence(routed.ids, experts_.group), shares_.group);
  const Variable sums = expert_mlp(gathered(x), ids, gathered(routed.weights), matrices_, options_);
  return reduce_scatter_to_sequence_region(reduce_scatter_to_sequence_region(sums, shares_),
                                           experts_);
}

ExpertMlp::ExpertMlp(const LayerConfig& config, const std::string& name, const TensorParallel& tp,
                     Stream stream)
    : router_(config, name + ".router", tp, stream), experts_(config, tp, stream) {
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
  const Shape rows = {x.data().numel() / x.size(-1), x.size(-1)};
  const Variable routed =
      reshape(experts_.forward(reshape(x, rows), router_.forward(x, context)), x.shape());
  if (!shared_experts_) return {routed, Variable()};
  ForwardContext whole = context;
  whole.decode = {};  // its output is no sum that the next norm computes
  Variable shared = shared_experts_->forward(x, whole).y;
  if (gate_weight_.defined()) {
    const Variable gate = cast(linear(reshape(x, rows), gate_weight_, Variable()), DType::kFloat32);
    const Tensor first = zeros({rows[0], 1}, DType::kInt32, x.stream());
    const Variable weights = expert_weights(gate, first, {.score = RouterScore::kSigmoid});
    shared = reshape(weighed_rows(reshape(shared, rows), weights), x.shape());
  }
  return {add(routed, shared), Variable()};
}

}  // namespace megatron

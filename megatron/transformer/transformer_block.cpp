#include "megatron/transformer/transformer_block.h"

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "megatron/core/error.h"
#include "megatron/device/dry_memory.h"
#include "megatron/parallel/tensor/mappings.h"
#include "megatron/transformer/init.h"
#include "megatron/transformer/recomputed_region.h"

namespace megatron {

TransformerBlock::TransformerBlock(const TransformerConfig& config, const Stack& stack,
                                   const StackSlice& slice, const TensorParallel& tp, Stream stream,
                                   const LayerMaker& make)
    : tp_(tp),
      recompute_(config),
      num_offloaded_(std::min(slice.num_layers, config.cpu_offloading_num_layers)),
      num_beside_(std::max<int64_t>(1, slice.num_layers - num_offloaded_ - 1)) {
  if (config.stores_inputs_on_host()) host_store_.emplace(stream);
  if ((slice.begins_with_mlp || slice.ends_with_attention) && config.parallel_residual) {
    throw ConfigError(
        "--pipeline-model-parallel-layout divides a layer with a|f, but attention and MLP of "
        "--parallel-residual read the same input; write t on one side of the |");
  }
  if (num_offloaded_ > 0) {
    activation_store_.emplace(stream, config.min_offloaded_tensor_size, num_beside_);
  }
  for (int64_t i = 0; i < slice.num_layers; ++i) {
    const int64_t layer = slice.first_layer + i;
    LayerRecipe recipe = layer_recipe(config, stack, layer);
    std::vector<BranchRecipe>& branches = recipe.branches;
    if (slice.begins_with_mlp && i == 0) branches.erase(branches.begin(), branches.end() - 1);
    if (slice.ends_with_attention && i + 1 == slice.num_layers) branches.pop_back();
    layers_.push_back(make(recipe, tp, stream));
    add_child("layers." + std::to_string(layer), *layers_.back());
    layer_names_.push_back("layer " + std::to_string(layer + 1));
  }
  if (!slice.has_end) return;
  final_layernorm_ = make_norm(config, tp, stream);
  add_child("final_layernorm", *final_layernorm_);
}

Variable TransformerBlock::forward(const Variable& x, const ForwardContext& context) const {
  const auto num_layers = static_cast<int64_t>(layers_.size());
  const bool is_recomputed =
      recompute_.recompute_granularity == RecomputeGranularity::kFull && grad_enabled();
  const StoredForm form = is_recomputed ? stored_form(x.shape()) : StoredForm();
  ResidualSum y{.residual = x};
  if (activation_store_ && grad_enabled()) {
    y = run_offloaded(y, context);
  } else if (!is_recomputed) {
    y = run(y, 0, num_layers, context);
  } else if (recompute_.recompute_method == RecomputeMethod::kUniform) {
    // Compat: Megatron-LM core_r0.5.0 fails when the layers are no multiple of the group; here the
    // last group is shorter.
    for (int64_t begin = 0; begin < num_layers; begin += recompute_.recompute_num_layers) {
      const int64_t end = std::min(num_layers, begin + recompute_.recompute_num_layers);
      y = {.residual = run_recomputed(y.residual, begin, end, context, form)};
    }
  } else {
    const int64_t covered = std::min(num_layers, recompute_.recompute_num_layers);
    for (int64_t layer = 0; layer < covered; ++layer) {
      y = {.residual = run_recomputed(y.residual, layer, layer + 1, context, form)};
    }
    y = run(y, covered, num_layers, context);
  }
  return final_layernorm_ ? final_layernorm_->forward(y).y : computed(y);
}

ResidualSum TransformerBlock::run(ResidualSum x, int64_t begin, int64_t end,
                                  const ForwardContext& context) const {
  for (int64_t layer = begin; layer < end; ++layer) {
    const MemoryPart part(layer_names_[static_cast<size_t>(layer)].c_str());
    x = layers_[static_cast<size_t>(layer)]->forward(x, context);
  }
  return x;
}

ResidualSum TransformerBlock::run_offloaded(ResidualSum x, const ForwardContext& context) const {
  const auto num_layers = static_cast<int64_t>(layers_.size());
  ActivationStore::Pass pass = activation_store_->new_pass();
  for (int64_t layer = 0; layer < num_offloaded_; ++layer) {
    const NewTensors made;
    x = run(std::move(x), layer, layer + 1, context);
    std::vector<Tensor> results = {x.residual.data()};
    if (x.branch.defined()) results.push_back(x.branch.data());
    if (context.auxiliary_losses != nullptr) {
      for (const Variable& loss : *context.auxiliary_losses) results.push_back(loss.data());
    }
    pass.end_part(made, results);
  }
  const int64_t last_beside = std::min(num_layers, num_offloaded_ + num_beside_);
  for (int64_t layer = num_offloaded_; layer < last_beside; ++layer) {
    x = run(std::move(x), layer, layer + 1, context);
    // The last result of the layer, and so the first to have its gradient.
    Variable& last = x.branch.defined() ? x.branch : x.residual;
    last = pass.end_staying_part(last);
  }
  return run(std::move(x), last_beside, num_layers, context);
}

StoredForm TransformerBlock::stored_form(const Shape& shape) const {
  StoredForm form = host_store_ ? host_store_->new_pass() : StoredForm();
  if (!recompute_.distribute_saved_activations || tp_.size() == 1 || tp_.sequence_parallel)
    return form;
  return [form, shape, group = tp_.group](const Tensor& whole) -> Restore {
    Tensor part = own_part(whole, group);
    const Restore restore = form ? form(part) : [part = std::move(part)] { return part; };
    return [restore, shape, group] { return gathered_parts(restore(), shape, group); };
  };
}

Variable TransformerBlock::run_recomputed(const Variable& x, int64_t begin, int64_t end,
                                          const ForwardContext& context,
                                          const StoredForm& form) const {
  return recompute_region(
      [this, begin, end](const Variable& in, const ForwardContext& inside) {
        return computed(run({.residual = in}, begin, end, inside));
      },
      x, context, form);
}

}  // namespace megatron

#include "megatron/transformer/transformer_block.h"

#include <algorithm>
#include <span>
#include <string>
#include <vector>

#include "megatron/autograd/recompute.h"
#include "megatron/parallel/tensor/mappings.h"
#include "megatron/transformer/init.h"

namespace megatron {

namespace {

// The config of a layer of the stack, counted from 0: FP8 may leave out the first and last ones.
TransformerConfig config_of(const TransformerConfig& config, const Stack& stack, int64_t layer) {
  const bool is_decoder_of_two = stack.has_cross_attention && config.decoder_num_layers > 0;
  const int64_t count = is_decoder_of_two ? config.decoder_num_layers : config.num_layers;
  const Fp8Config& fp8 = config.fp8;
  TransformerConfig own = config;
  if (fp8.first_last_layers_bf16 &&
      (layer < fp8.num_layers_at_start_in_bf16 || layer >= count - fp8.num_layers_at_end_in_bf16)) {
    own.fp8.format = Fp8Format::kNone;
  }
  return own;
}

}  // namespace

TransformerBlock::TransformerBlock(const TransformerConfig& config, const Stack& stack,
                                   const StackSlice& slice, const TensorParallel& tp, Stream stream)
    : tp_(tp),
      distribute_saved_activations_(config.distribute_saved_activations),
      recompute_granularity_(config.recompute_granularity),
      recompute_method_(config.recompute_method),
      recompute_num_layers_(config.recompute_num_layers) {
  if (config.stores_inputs_on_host()) host_store_.emplace(stream);
  for (int64_t i = 0; i < slice.num_layers; ++i) {
    const int64_t layer = slice.first_layer + i;
    layers_.push_back(std::make_unique<TransformerLayer>(config_of(config, stack, layer), stack,
                                                         layer, tp, stream));
    add_child("layers." + std::to_string(layer), *layers_.back());
  }
  if (!slice.has_end) return;
  final_layernorm_.emplace(config.hidden_size, norm_flags(config).kind, norm_flags(config).options,
                           placement_of(config, tp, stream));
  add_child("final_layernorm", *final_layernorm_);
}

Variable TransformerBlock::forward(const Variable& x, const ForwardContext& context) const {
  const auto num_layers = static_cast<int64_t>(layers_.size());
  // Selective recompute asks for the attention core, which never keeps its probabilities anyway.
  const bool is_recomputed =
      recompute_granularity_ == RecomputeGranularity::kFull && grad_enabled();
  const StoredForm form = is_recomputed ? stored_form(x.shape()) : StoredForm();
  ResidualSum y{.residual = x};
  if (!is_recomputed) {
    y = run(y, 0, num_layers, context);
  } else if (recompute_method_ == RecomputeMethod::kUniform) {
    // Compat: Megatron-LM core_r0.5.0 fails when the layers are no multiple of the group; here the
    // last group is shorter.
    for (int64_t begin = 0; begin < num_layers; begin += recompute_num_layers_) {
      const int64_t end = std::min(num_layers, begin + recompute_num_layers_);
      y = {.residual = run_recomputed(y.residual, begin, end, context, form)};
    }
  } else {
    const int64_t covered = std::min(num_layers, recompute_num_layers_);
    for (int64_t layer = 0; layer < covered; ++layer) {
      y = {.residual = run_recomputed(y.residual, layer, layer + 1, context, form)};
    }
    y = run(y, covered, num_layers, context);
  }
  return final_layernorm_ ? final_layernorm_->forward(y).y : computed(y);
}

void TransformerBlock::keep_encoder_output(const Variable& output, KvCache& cache,
                                           const Tensor& slots) const {
  for (const auto& layer : layers_) layer->keep_encoder_output(output, cache, slots);
}

ResidualSum TransformerBlock::run(ResidualSum x, int64_t begin, int64_t end,
                                  const ForwardContext& context) const {
  for (int64_t layer = begin; layer < end; ++layer) {
    x = layers_[static_cast<size_t>(layer)]->forward(x, context);
  }
  return x;
}

StoredForm TransformerBlock::stored_form(const Shape& shape) const {
  const StoredForm form = host_store_ ? host_store_->new_pass() : StoredForm();
  if (!distribute_saved_activations_ || tp_.size() == 1 || tp_.sequence_parallel) return form;
  return [form, shape, group = tp_.group](const Tensor& whole) -> Restore {
    const Tensor part = own_part(whole, group);
    const Restore restore = form ? form(part) : [part] { return part; };
    return [restore, shape, group] { return gathered_parts(restore(), shape, group); };
  };
}

Variable TransformerBlock::run_recomputed(const Variable& x, int64_t begin, int64_t end,
                                          const ForwardContext& context,
                                          const StoredForm& form) const {
  // The Variables of the context are inputs of the region: they get gradients from it.
  ForwardContext constants = context;
  constants.encoder.output = constants.sequence.relative_bias = Variable();
  return recompute(
      [this, begin, end, constants](std::span<const Variable> xs) -> std::vector<Variable> {
        ForwardContext inside = constants;
        inside.encoder.output = xs[1];
        inside.sequence.relative_bias = xs[2];
        return {computed(run({.residual = xs[0]}, begin, end, inside))};
      },
      {x, context.encoder.output, context.sequence.relative_bias}, *context.random, form)[0];
}

}  // namespace megatron

#pragma once

#include <memory>
#include <optional>
#include <vector>

#include "megatron/autograd/activation_store.h"
#include "megatron/autograd/host_store.h"
#include "megatron/transformer/config.h"
#include "megatron/transformer/layer_recipe.h"

namespace megatron {

// A slice of a stack of layers, and the norm that follows the last layer of the stack.
class TransformerBlock final : public Module {
 public:
  // Throws ConfigError if a slice divides a layer with parallel_residual.
  TransformerBlock(const TransformerConfig& config, const Stack& stack, const StackSlice& slice,
                   const TensorParallel& tp, Stream stream, const LayerMaker& make = make_layer);

  // x [s, b, h] -> [s, b, h] ([s/tp, b, h] with sequence parallelism), in params_dtype after the
  // final norm. Recomputes activations as configured, in grad mode.
  Variable forward(const Variable& x, const ForwardContext& context) const;

  // Host memory for the inputs of recomputed layers with checkpoint_in_cpu; else null.
  const HostStore* host_store() const { return host_store_ ? &*host_store_ : nullptr; }
  // Host memory for the activations of the first layers with cpu_offloading_num_layers; else null.
  const ActivationStore* activation_store() const {
    return activation_store_ ? &*activation_store_ : nullptr;
  }

 private:
  // Layers [begin, end) one after the other, or as one recomputed region.
  ResidualSum run(ResidualSum x, int64_t begin, int64_t end, const ForwardContext& context) const;
  // The whole slice, whose first layers keep their activations in host memory.
  ResidualSum run_offloaded(ResidualSum x, const ForwardContext& context) const;
  Variable run_recomputed(const Variable& x, int64_t begin, int64_t end,
                          const ForwardContext& context, const StoredForm& form) const;
  // Storage of the inputs of recomputed regions, of this shape, during one forward pass.
  StoredForm stored_form(const Shape& shape) const;

  TensorParallel tp_;
  RecomputeConfig recompute_;
  std::optional<HostStore> host_store_;
  std::optional<ActivationStore> activation_store_;
  int64_t num_offloaded_;  // layers
  // Layers whose activations may be on the device beside those of the running one, while the first
  // ones leave and come back: as many as stay at the end of the pass, with the running one.
  int64_t num_beside_;
  std::vector<std::unique_ptr<TransformerLayer>> layers_;
  std::vector<std::string> layer_names_;  // "layer 1", in a MemoryLog
  std::unique_ptr<Norm> final_layernorm_;
};

}  // namespace megatron

#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "megatron/nn/module.h"
#include "megatron/ops/router.h"
#include "megatron/transformer/forward_context.h"
#include "megatron/transformer/layer_config.h"

namespace megatron {

// The experts of T tokens, and their weights.
struct RoutedTokens {
  Tensor ids;        // [T, k] int32; -1: none, because the expert was full
  Variable weights;  // [T, k] fp32
};

// True if `type` is one of moe_router_load_balancing_type.
bool balances_by(const ExpertConfig& config, std::string_view type);
// The rules that give a token's experts and their weights from the logits.
RouterOptions router_options(const ExpertConfig& config);

// The router of a mixture of experts: logits = x weight^T + bias, of which each token gets its
// experts. Auxiliary losses keep the experts equally busy (Fedus et al. 2021, arXiv:2101.03961,
// sec. 2.2), or a bias of the choice does (Wang et al. 2024, arXiv:2408.15664).
//
//   weight  [E, h]   bias  [E], with add_bias_linear
//   expert_bias, qb_beta  [E] fp32 buffers, changed by Routers
class Router final : public Module {
 public:
  // `name` is that of this part in the model: "decoder.layers.3.mlp.router"; `layer` counts from 0,
  // those of further tokens behind the others.
  Router(const LayerConfig& config, const std::string& name, const TensorParallel& tp,
         Stream stream, int64_t layer = 0);

  // x [s, b, h], [s/tp, b, h] with sequence parallelism: T = s b, or s/tp b tokens.
  RoutedTokens forward(const Variable& x, const ForwardContext& context) const;

 private:
  friend class Routers;

  // Sums over an iteration's microbatches on this rank, on the model's device.
  struct Sums {
    Tensor losses;       // [kNumLosses + 1] fp32; last the number of microbatches
    Tensor load;         // [E] fp32: tokens of each expert
    Tensor global_load;  // [E] fp32: choices without bias, of all ranks with other tokens
    Tensor quantiles;    // [E] fp32: balancing_quantiles()
    Tensor one;          // [1] fp32
    // The same number on the host, for global_aux_loss, which no recorded microbatch has.
    int64_t num_microbatches = 0;
  };
  static constexpr int kNumLosses = 4;

  // rows (1 + noise) in training, one row for each token of x [s, b, h].
  Variable jittered_rows(const Variable& rows, const Shape& x, const ForwardContext& context) const;
  Variable logits_of(const Variable& x, const ForwardContext& context) const;
  Tensor chosen(const Tensor& logits, bool is_training) const;
  // The routed tokens of generation, by one kernel.   logits [T, E]
  RoutedTokens routed(const Tensor& logits) const;
  // Adds the losses of a microbatch to the context; `plain` are logits without jitter. x [s, b, h]
  void add_losses(const Variable& plain, const Variable& logits, const Shape& x,
                  const ForwardContext& context) const;
  void add_loss(int which, const Variable& loss, double coefficient,
                const ForwardContext& context) const;
  void count(const Tensor& ids, const Tensor& logits, const ForwardContext& context) const;

  ExpertConfig config_;
  TensorParallel tp_;
  int64_t layer_;
  uint64_t jitter_site_;
  RouterOptions options_;
  bool is_sinkhorn_;
  Variable weight_;
  Variable bias_;
  Tensor expert_bias_;
  Tensor qb_beta_;
  std::unique_ptr<Sums> sums_;
};

// All routers of a rank's chunks of a model.
class Routers {
 public:
  // The chunks and `parallel` must outlive it. `num_layers`: of the model, with those of further
  // tokens.
  Routers(const std::vector<const Module*>& chunks, const ExpertConfig& config, int64_t num_layers,
          const ParallelContext& parallel, Stream stream);

  // Auxiliary losses by name, without their coefficients: means over microbatches.
  struct Report {
    std::vector<std::pair<std::string, double>> losses;  // means over layers, too
    // With moe_per_layer_logging: each layer's losses, and the tokens of each expert as a multiple
    // of its even share, "moe/load_layer_3_expert_5".
    std::vector<std::pair<std::string, double>> of_layers;
  };
  // Call after the last backward pass of an iteration, on every rank: changes the biases that
  // balance the experts by the tokens that each had on all ranks. Waits for the device.
  Report finish_iteration();

 private:
  // Sums a tensor over the ranks with other tokens.
  void sum_over_tokens(Tensor& x) const;
  // The ranks with parts of a sequence.
  float ranks_of_sequence() const;
  // Changes its biases by the sums of all ranks, and begins new sums.
  void finish(const Router& router) const;
  // Report::of_layers of rows that are sums over all ranks: a router's losses, then its load.
  std::vector<std::pair<std::string, double>> layer_values(const Tensor& rows) const;

  ExpertConfig config_;
  int64_t num_layers_;
  const ParallelContext& parallel_;
  const Stream stream_;
  std::vector<const Router*> routers_;
};

}  // namespace megatron

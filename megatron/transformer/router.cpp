#include "megatron/transformer/router.h"

#include <algorithm>
#include <cmath>
#include <string>

#include "megatron/comm/collectives.h"
#include "megatron/kernels/random.h"
#include "megatron/ops/elementwise.h"
#include "megatron/ops/linear.h"
#include "megatron/parallel/context/sequence.h"
#include "megatron/parallel/tensor/mappings.h"
#include "megatron/transformer/init.h"

namespace megatron {
namespace {

// The places of Router::Sums::losses.
enum RouterLoss { kMicrobatchLoss, kSequenceLoss, kGlobalLoss, kZLoss };
constexpr const char* kRouterLossNames[] = {"load_balancing_loss", "seq_load_balancing_loss",
                                            "global_load_balancing_loss", "z_loss"};

// The losses that layers compute, and their coefficients.
std::vector<std::pair<RouterLoss, double>> router_losses(const ExpertConfig& config) {
  std::vector<std::pair<RouterLoss, double>> all;
  const auto add = [&](const char* type, RouterLoss loss) {
    const auto& types = config.moe_router_load_balancing_type;
    for (size_t i = 0; i < types.size(); ++i) {
      if (types[i] == type && config.moe_aux_loss_coeff[i] != 0) {
        all.emplace_back(loss, config.moe_aux_loss_coeff[i]);
      }
    }
  };
  add("aux_loss", kMicrobatchLoss);
  add("seq_aux_loss", kSequenceLoss);
  add("global_aux_loss", kGlobalLoss);
  if (config.moe_z_loss_coeff != 0) all.emplace_back(kZLoss, config.moe_z_loss_coeff);
  return all;
}

void all_reduce_over(Tensor& x, const comm::Group& group) {
  if (group.size() > 1) comm::all_reduce(x.view(), comm::Reduce::kSum, group, x.stream());
}

}  // namespace

bool balances_by(const ExpertConfig& config, std::string_view type) {
  return std::ranges::find(config.moe_router_load_balancing_type, type) !=
         config.moe_router_load_balancing_type.end();
}

RouterOptions router_options(const ExpertConfig& config) {
  const bool is_sinkhorn = balances_by(config, "sinkhorn");
  const double scaling = config.moe_router_topk_scaling_factor;
  return {.score = config.moe_router_score_function,
          .pre_softmax = config.moe_router_pre_softmax,
          .is_sinkhorn = is_sinkhorn,
          .num_groups = config.moe_router_num_groups,
          .group_topk = config.moe_router_group_topk,
          .group_score_topk = config.moe_router_group_score_topk,
          .scaling_factor = scaling == 0 || is_sinkhorn ? 1.0f : static_cast<float>(scaling)};
}

Router::Router(const LayerConfig& config, const std::string& name, const TensorParallel& tp,
               Stream stream, int64_t layer)
    : config_(config),
      tp_(tp),
      layer_(layer),
      jitter_site_(hash_of(name + ".jitter")),
      options_(router_options(config)),
      is_sinkhorn_(options_.is_sinkhorn) {
  const Shape experts = {config.num_experts};
  const Placement placement = placement_of(config, tp, stream);
  weight_ = add_parameter("weight", {config.num_experts, config.hidden_size},
                          {.role = ParameterRole::kMatrix, .init = input_init(config)}, placement);
  if (config.add_bias_linear && !config.moe_legacy_router) {
    bias_ = add_parameter("bias", experts,
                          {.role = ParameterRole::kBias, .init = input_init(config)}, placement);
  }
  if (config.moe_router_enable_expert_bias) {
    expert_bias_ = add_buffer("expert_bias", experts, DType::kFloat32, Init::zeros(), stream);
  }
  if (balances_by(config, "quantile_balancing")) {
    qb_beta_ = add_buffer("qb_beta", experts, DType::kFloat32, Init::zeros(), stream);
  }
  if (only_describes()) return;
  sums_ = std::make_unique<Sums>();
  sums_->losses = zeros({kNumLosses + 1}, DType::kFloat32, stream);
  sums_->one = full({1}, 1.0f, DType::kFloat32, stream);
  for (Tensor* one : {&sums_->load, &sums_->global_load, &sums_->quantiles}) {
    *one = zeros(experts, DType::kFloat32, stream);
  }
}

Variable Router::jittered_rows(const Variable& rows, const Shape& x,
                               const ForwardContext& context) const {
  const double eps = config_.moe_input_jitter_eps;
  // Any probability asks for the key of a site that draws in training alone.
  const DropoutKey key = of_rows(context.random->dropout_key(jitter_site_, eps > 0 ? 0.5f : 0.0f),
                                 x[0], tp_, context.context_parallel);
  if (!key.is_active()) return rows;
  // A row of noise for each position and sample: all samples of a position lie together.
  Tensor noise(rows.shape(), DType::kFloat32, rows.stream());
  for (int64_t s = 0; s < x[0]; ++s) {
    kernels::fill_uniform(noise.slice(s * x[1], x[1]).view(),
                          {.row = (key.row(s) << 32) + key.sample(0)}, key.key,
                          static_cast<float>(eps), rows.stream());
  }
  return jittered(rows, noise);
}

Variable Router::logits_of(const Variable& x, const ForwardContext& context) const {
  const int64_t hidden = x.size(-1);
  Variable rows = reshape(x, {x.data().numel() / hidden, hidden});
  if (!config_.moe_legacy_router) rows = jittered_rows(rows, x.shape(), context);
  if (!config_.moe_router_dtype) return linear(rows, weight_, bias_);
  if (*config_.moe_router_dtype == DType::kFloat64) return double_logits(rows, weight_, bias_);
  const auto converted = [&](const Variable& one) {
    return one.defined() ? cast(one, *config_.moe_router_dtype) : one;
  };
  return linear(converted(rows), converted(weight_), converted(bias_));
}

Tensor Router::chosen(const Tensor& logits, bool is_training) const {
  Tensor ids({logits.size(0), config_.moe_router_topk}, DType::kInt32, logits.stream());
  if (is_sinkhorn_ && is_training) {
    kernels::choose_balanced_experts(ids.view(), logits.view(), ids.stream());
  } else if (qb_beta_.defined()) {
    Tensor bias = copied(qb_beta_);
    scale_inplace(bias, -1);
    kernels::choose_experts(ids.view(), logits.view(), bias.view(), {}, ids.stream());
  } else {
    kernels::choose_experts(ids.view(), logits.view(),
                            expert_bias_.defined() ? expert_bias_.view() : ConstView{}, options_,
                            ids.stream());
  }
  return ids;
}

RoutedTokens Router::routed(const Tensor& logits) const {
  const Shape slots = {logits.size(0), config_.moe_router_topk};
  RoutedTokens routed{Tensor(slots, DType::kInt32, logits.stream()), Variable()};
  Tensor weights(slots, DType::kFloat32, logits.stream());
  kernels::route_tokens(routed.ids.view(), weights.view(), logits.view(),
                        expert_bias_.defined() ? expert_bias_.view() : ConstView{}, options_,
                        logits.stream());
  routed.weights = Variable(weights);
  return routed;
}

RoutedTokens Router::forward(const Variable& x, const ForwardContext& context) const {
  const Variable product = logits_of(x, context);
  const bool is_double = product.dtype() == DType::kFloat64;
  const bool has_rest = is_double || config_.moe_legacy_router || qb_beta_.defined();
  // A step of generation has tokens of other texts, and rows that pad it: none is dropped for them.
  const bool is_generation = context.decode.cached != nullptr;
  if (is_generation && !has_rest) return routed(product.data());
  const Variable plain = cast(product, DType::kFloat32);
  const Variable logits =
      config_.moe_legacy_router ? jittered_rows(plain, x.shape(), context) : plain;
  const Variable& exact = is_double ? product : logits;
  const bool is_training = context.auxiliary_losses != nullptr;
  RoutedTokens routed;
  routed.ids = chosen(is_sinkhorn_ && is_training ? logits.data() : exact.data(), is_training);
  routed.weights = expert_weights(exact, routed.ids, options_);
  // Weights have the precision of the logits; fp64 is rounded to fp32.
  if (!is_double) {
    routed.weights = cast(cast(routed.weights, product.dtype()), DType::kFloat32);
  }
  if (config_.moe_expert_capacity_factor >= 0 && !is_generation) {
    const auto tokens = static_cast<double>(routed.ids.numel());
    const auto capacity = static_cast<int64_t>(std::ceil(
        tokens / static_cast<double>(config_.num_experts) * config_.moe_expert_capacity_factor));
    // The weights of these choices stay in the graph of the others.
    routed.ids = copied(routed.ids);
    kernels::drop_tokens(routed.ids.view(), routed.weights.data().view(), config_.num_experts,
                         capacity, config_.moe_token_drop_policy == TokenDropPolicy::kPosition,
                         x.stream());
  }
  if (is_training) {
    add_losses(is_double ? product : plain, logits, x.shape(), context);
    count(routed.ids, logits.data(), context);
  }
  return routed;
}

void Router::add_loss(int which, const Variable& loss, double coefficient,
                      const ForwardContext& context) const {
  if (grad_enabled()) {
    Tensor sum = sums_->losses.slice(which, 1);
    add_inplace(sum, loss.data().reshape({1}), static_cast<float>(1 / coefficient));
  }
  // Losses are means over the ranks of a sequence, too; this one is a part of a sum over them.
  context.auxiliary_losses->push_back(
      scale(loss, static_cast<float>(context.context_parallel.size())));
}

void Router::add_losses(const Variable& plain, const Variable& logits, const Shape& x,
                        const ForwardContext& context) const {
  const auto losses = router_losses(config_);
  const int64_t experts = config_.num_experts;
  const comm::Group& cp = context.context_parallel.group;
  const bool divides = tp_.sequence_parallel && !config_.moe_legacy_router;
  const auto parts = static_cast<double>((divides ? tp_.size() : 1) * cp.size());
  const auto tokens = static_cast<double>(logits.size(0)) * parts;
  const auto sequences = static_cast<double>(x[1]);
  const auto of_uniform =
      static_cast<double>(experts) / static_cast<double>(config_.moe_router_topk);

  // Choices by the plain scores, of the ranks that share the sequences.
  const auto counts_of = [&](int64_t groups) {
    Tensor ids({logits.size(0), config_.moe_router_topk}, DType::kInt32, logits.stream());
    kernels::choose_experts(ids.view(), logits.data().view(), {}, {}, ids.stream());
    Tensor counts({groups, experts}, DType::kFloat32, logits.stream());
    kernels::count_by_group(counts.view(), ids.view(), counts.stream());
    if (divides) all_reduce_over(counts, tp_.group);
    all_reduce_over(counts, cp);
    return counts;
  };
  for (const auto& [loss, coefficient] : losses) {
    Variable value;
    if (loss == kZLoss) {
      value = squared_log_sum_loss(plain, coefficient / tokens);
    } else if (loss == kSequenceLoss) {
      const double length = tokens / sequences;
      value = balancing_loss(logits, counts_of(x[1]), config_.moe_router_score_function,
                             coefficient * of_uniform / (length * length * sequences));
    } else if (loss == kMicrobatchLoss) {
      value = balancing_loss(logits, counts_of(1), config_.moe_router_score_function,
                             coefficient * of_uniform / (tokens * tokens));
    } else {
      Tensor counts = counts_of(1);
      int replicas = 1;
      if (tp_.experts != nullptr) {
        // The counts of a sequence are on each of its ranks.
        all_reduce_over(counts, tp_.experts->data);
        replicas = tp_.experts->data.size() / cp.size();
        scale_inplace(counts, 1.0f / static_cast<float>(cp.size()));
      }
      Tensor load = sums_->global_load.reshape(counts.shape());
      add_inplace(counts, load);
      const int64_t microbatches = sums_->num_microbatches + 1;
      if (grad_enabled()) copy_into(load, counts);
      value = balancing_loss(logits, counts, config_.moe_router_score_function,
                             coefficient * of_uniform /
                                 (tokens * tokens * static_cast<double>(replicas * microbatches)));
    }
    add_loss(loss, value, coefficient, context);
  }
}

void Router::count(const Tensor& ids, const Tensor& logits, const ForwardContext& context) const {
  if (!grad_enabled()) return;  // recomputation will count
  sums_->num_microbatches += 1;
  Tensor microbatches = sums_->losses.slice(kNumLosses, 1);
  add_inplace(microbatches, sums_->one);
  if (expert_bias_.defined() || config_.moe_per_layer_logging) {
    Tensor counts({1, config_.num_experts}, DType::kFloat32, ids.stream());
    kernels::count_by_group(counts.view(), ids.view(), ids.stream());
    add_inplace(sums_->load, counts.reshape(sums_->load.shape()));
  }
  if (qb_beta_.defined()) {
    Tensor all = tp_.sequence_parallel ? gathered_sequence(logits, tp_.group) : logits;
    all = gathered_sequence(all, context.context_parallel.group);
    Tensor quantiles = empty_like(qb_beta_);
    Tensor thresholds({all.size(0)}, DType::kFloat32, all.stream());
    kernels::balancing_quantiles(quantiles.view(), thresholds.view(), all.view(), qb_beta_.view(),
                                 config_.moe_router_topk, all.stream());
    add_inplace(sums_->quantiles, quantiles);
  }
}

Routers::Routers(const std::vector<const Module*>& chunks, const ExpertConfig& config,
                 int64_t num_layers, const ParallelContext& parallel, Stream stream)
    : config_(config), num_layers_(num_layers), parallel_(parallel), stream_(stream) {
  for (const Module* chunk : chunks) {
    for (const Router* router : modules_of<Router>(*chunk)) routers_.push_back(router);
  }
}

void Routers::sum_over_tokens(Tensor& x) const {
  if (parallel_.tensor.sequence_parallel) all_reduce_over(x, parallel_.tensor.group);
  all_reduce_over(x, parallel_.data);
}

float Routers::ranks_of_sequence() const {
  const int tp = parallel_.tensor.sequence_parallel ? parallel_.tensor.size() : 1;
  return static_cast<float>(tp * parallel_.context.size());
}

void Routers::finish(const Router& router) const {
  Router::Sums& sums = *router.sums_;
  const bool is_trained = router.weight_.requires_grad();
  if (router.expert_bias_.defined() && is_trained) {
    const Tensor load = sums.load.to(Stream{});
    const std::span<const float> tokens = load.span<float>();
    double mean = 0;
    for (const float count : tokens) mean += static_cast<double>(count);
    mean /= static_cast<double>(tokens.size());
    Tensor change = zeros(load.shape(), DType::kFloat32, Stream{});
    const auto rate = static_cast<float>(config_.moe_router_bias_update_rate);
    for (size_t e = 0; e < tokens.size(); ++e) {
      const double above = mean - static_cast<double>(tokens[e]);
      change.span<float>()[e] = above > 0 ? rate : above < 0 ? -rate : 0.0f;
    }
    Tensor bias = router.expert_bias_;
    add_inplace(bias, change.to(bias.stream()));
  }
  if (router.qb_beta_.defined() && is_trained) {
    Tensor beta = router.qb_beta_.to(Stream{});
    const Tensor quantiles = sums.quantiles.to(Stream{});
    const double ema = config_.moe_router_quantile_balancing_ema;
    const Tensor losses = sums.losses.to(Stream{});
    const long microbatches = std::lround(losses.span<float>().back() * ranks_of_sequence());
    const auto count = static_cast<double>(microbatches * parallel_.num_replicas());
    const std::span<float> values = beta.span<float>();
    double mean = 0;
    for (size_t e = 0; e < values.size(); ++e) {
      const double quantile = static_cast<double>(quantiles.span<float>()[e]) / count;
      values[e] = static_cast<float>(ema * static_cast<double>(values[e]) + (1 - ema) * quantile);
      mean += static_cast<double>(values[e]) / static_cast<double>(values.size());
    }
    for (float& value : values) value -= static_cast<float>(mean);
    Tensor kept = router.qb_beta_;
    copy_into(kept, beta);
  }
  for (Tensor* sum : {&sums.losses, &sums.load, &sums.global_load, &sums.quantiles}) {
    scale_inplace(*sum, 0);
  }
  sums.num_microbatches = 0;
}

std::vector<std::pair<std::string, double>> Routers::layer_values(const Tensor& rows) const {
  constexpr int kLosses = Router::kNumLosses;
  const auto experts = static_cast<size_t>(config_.num_experts);
  const std::span<const float> all = rows.span<float>();
  std::vector<std::pair<std::string, double>> values;
  for (int64_t layer = 0; layer < num_layers_; ++layer) {
    const auto row = all.subspan(static_cast<size_t>(layer) * (kLosses + 1 + experts));
    const double microbatches = static_cast<double>(row[kLosses]);
    if (microbatches == 0) continue;  // a dense layer
    const std::string place = "_layer_" + std::to_string(layer);
    for (const auto& [loss, coefficient] : router_losses(config_)) {
      values.emplace_back(std::string("moe/") + kRouterLossNames[loss] + place,
                          static_cast<double>(row[static_cast<size_t>(loss)]) / microbatches);
    }
    const std::span<const float> load = row.subspan(kLosses + 1, experts);
    double sum = 0;
    for (const float tokens : load) sum += static_cast<double>(tokens);
    for (size_t e = 0; e < experts; ++e) {
      values.emplace_back(
          "moe/load" + place + "_expert_" + std::to_string(e),
          static_cast<double>(load[e]) * static_cast<double>(experts) / std::max(sum, 1.0));
    }
  }
  return values;
}

Routers::Report Routers::finish_iteration() {
  if (!config_.has_experts()) return {};
  const float shares = ranks_of_sequence();
  constexpr int64_t kSums = Router::kNumLosses + 1;
  // The losses of all layers, and the number of microbatches that have them.
  Tensor sums = zeros({kSums}, DType::kFloat32, stream_);
  Tensor rows;  // of each layer
  if (config_.moe_per_layer_logging) {
    rows = zeros({num_layers_, kSums + config_.num_experts}, DType::kFloat32, stream_);
  }
  for (const Router* router : routers_) {
    Router::Sums& own = *router->sums_;
    Tensor microbatches = own.losses.slice(Router::kNumLosses, 1);
    scale_inplace(microbatches, 1.0f / shares);
    add_inplace(sums, own.losses);
    if (rows.defined()) {
      const Tensor row = rows.slice(router->layer_, 1).reshape({rows.size(1)});
      Tensor losses = row.slice(0, kSums);
      add_inplace(losses, own.losses);
      Tensor load = row.slice(kSums, config_.num_experts);
      add_inplace(load, own.load);
    }
    if (router->expert_bias_.defined()) sum_over_tokens(own.load);
    if (router->qb_beta_.defined()) {
      sum_over_tokens(own.quantiles);
      scale_inplace(own.quantiles, 1.0f / shares);  // each has those of the sequence
    }
    finish(*router);
  }
  Report report;
  for (Tensor* one : {&sums, &rows}) {
    if (!one->defined()) continue;
    sum_over_tokens(*one);
    all_reduce_over(*one, parallel_.pipeline);
  }
  const Tensor here = sums.to(Stream{});
  const std::span<const float> values = here.span<float>();
  for (const auto& [loss, coefficient] : router_losses(config_)) {
    report.losses.emplace_back(kRouterLossNames[loss], static_cast<double>(values[loss]) /
                                                           static_cast<double>(values.back()));
  }
  if (rows.defined()) report.of_layers = layer_values(rows.to(Stream{}));
  return report;
}

}  // namespace megatron

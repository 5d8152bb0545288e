#include "megatron/transformer/expert_config.h"

#include <algorithm>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "megatron/transformer/lora.h"

namespace megatron {
namespace {

class ExpertProblems {
 public:
  explicit ExpertProblems(const TransformerConfig& config) : c_(config) {}

  std::vector<std::string> found() {
    if (c_.num_experts < 0) {
      require(false, fmt::format("--num-experts {} must be greater than 0", c_.num_experts));
    }
    if (!c_.has_experts()) return found_;
    model();
    layers();
    choice();
    balancing();
    capacity();
    return found_;
  }

 private:
  void require(bool holds, std::string problem) {
    if (!holds) found_.push_back(std::move(problem));
  }

  void model() {
    require(c_.is_decoder_only() && !c_.retro.add_retriever,
            fmt::format("--num-experts {} is for a GPT without a retriever; remove it",
                        c_.num_experts));
    require(!c_.fp8.is_on() || c_.fp8.recipe != Fp8Recipe::kBlockwise,
            "--fp8-recipe blockwise is not available with --num-experts yet; use delayed or "
            "tensorwise");
    const bool has_adapters =
        lora_of(c_, "linear_fc1").rank > 0 || lora_of(c_, "linear_fc2").rank > 0;
    require(!has_adapters || c_.lora_dropout == 0,
            fmt::format("--lora-dropout {}: adapters of experts have no dropout; use 0, or "
                        "--lora-target-modules linear_qkv linear_proj",
                        c_.lora_dropout));
    require(c_.moe_ffn_hidden_size > 0,
            fmt::format("--moe-ffn-hidden-size {} must be greater than 0", c_.moe_ffn_hidden_size));
    require(c_.moe_shared_expert_intermediate_size >= 0,
            fmt::format("--moe-shared-expert-intermediate-size {} must be greater than 0",
                        c_.moe_shared_expert_intermediate_size));
    require(!c_.moe_shared_expert_gate || c_.moe_shared_expert_intermediate_size > 0,
            "--moe-shared-expert-gate needs --moe-shared-expert-intermediate-size; add it or "
            "remove the gate");
  }

  void layers() {
    const std::vector<int>& freq = c_.moe_layer_freq;
    require(freq.empty() || std::ssize(freq) == c_.num_layers,
            fmt::format("--moe-layer-freq has {} layers; give a number for each of --num-layers {}",
                        freq.size(), c_.num_layers));
    require(freq.empty() || std::ranges::any_of(freq, [](int one) { return one != 0; }),
            "--moe-layer-freq gives no layer experts; remove --num-experts, or give a layer 1");
    for (const int one : freq) {
      if (one == 0 || one == 1) continue;
      require(false, fmt::format("--moe-layer-freq has the number {}; a layer's is 1 with experts "
                                 "and 0 without",
                                 one));
      return;
    }
  }

  void choice() {
    const int64_t experts = c_.num_experts;
    const int64_t topk = c_.moe_router_topk;
    require(
        topk >= 1 && topk <= experts,
        fmt::format("--moe-router-topk {} must be between 1 and --num-experts {}", topk, experts));
    const bool is_softmax = c_.moe_router_score_function == RouterScore::kSoftmax;
    require(
        topk != 1 || !is_softmax || c_.moe_router_pre_softmax || balances_by("sinkhorn") ||
            c_.moe_legacy_router,
        "--moe-router-topk 1 needs --moe-router-pre-softmax: the softmax of one logit is 1, and "
        "the router would not learn");
    require(!c_.moe_router_enable_expert_bias || !is_softmax,
            "--moe-router-enable-expert-bias needs --moe-router-score-function sigmoid or "
            "sqrtsoftplus");
    require(!c_.moe_apply_probs_on_input || topk == 1,
            fmt::format("--moe-apply-probs-on-input needs --moe-router-topk 1, not {}", topk));
    require(c_.moe_router_dtype != DType::kFloat64 || !c_.moe_legacy_router,
            "--moe-router-dtype fp64 and --megatron-compat 0.5 exclude each other: that version "
            "has no such flag; use fp32");
    const int64_t groups = c_.moe_router_num_groups;
    const int64_t kept = c_.moe_router_group_topk;
    require((groups == 0) == (kept == 0),
            "--moe-router-num-groups and --moe-router-group-topk need each other; give both");
    const int64_t terms = c_.moe_router_group_score_topk;
    require(terms == 0 || groups > 0,
            "--moe-router-group-score-topk needs --moe-router-num-groups and "
            "--moe-router-group-topk; give them or remove it");
    if (groups == 0 || kept == 0) return;
    require(groups > 0 && experts % groups == 0,
            fmt::format("--num-experts {} must be a multiple of --moe-router-num-groups {}",
                        experts, groups));
    require(kept > 0 && kept <= groups && (terms > 0 || topk >= kept) &&
                topk * groups <= experts * kept,
            fmt::format("--moe-router-group-topk {}: a token cannot choose --moe-router-topk {} "
                        "experts from so many of {} groups",
                        kept, topk, groups));
    require(terms >= 0 && (groups <= 0 || terms <= experts / groups),
            fmt::format("--moe-router-group-score-topk {} must be between 1 and the {} experts of "
                        "a group",
                        terms, groups > 0 ? experts / groups : experts));
  }

  bool balances_by(const char* type) const {
    return std::ranges::find(c_.moe_router_load_balancing_type, type) !=
           c_.moe_router_load_balancing_type.end();
  }

  void balancing() {
    const std::vector<std::string>& types = c_.moe_router_load_balancing_type;
    const std::vector<double>& coefficients = c_.moe_aux_loss_coeff;
    constexpr const char* kLosses[] = {"aux_loss", "seq_aux_loss", "global_aux_loss"};
    constexpr const char* kOthers[] = {"sinkhorn", "quantile_balancing", "none"};
    for (const std::string& type : types) {
      const bool is_loss = std::ranges::find(kLosses, type) != std::end(kLosses);
      const bool is_other = std::ranges::find(kOthers, type) != std::end(kOthers);
      require(is_loss || is_other,
              fmt::format("--moe-router-load-balancing-type {} must be one of {}, {}", type,
                          fmt::join(kLosses, ", "), fmt::join(kOthers, ", ")));
      require(!is_other || types.size() == 1,
              fmt::format("--moe-router-load-balancing-type {} stands alone; keep one", type));
      require(!is_other || std::ranges::all_of(coefficients, [](double x) { return x == 0; }),
              fmt::format("--moe-router-load-balancing-type {} has no loss; remove "
                          "--moe-aux-loss-coeff",
                          type));
    }
    require(!types.empty() && coefficients.size() == types.size(),
            fmt::format("--moe-aux-loss-coeff has {} numbers for {} types of load balancing; give "
                        "one for each",
                        coefficients.size(), types.size()));
    const int64_t topk = c_.moe_router_topk;
    require(!balances_by("quantile_balancing") ||
                (topk < c_.num_experts && c_.moe_router_group_topk == 0),
            "--moe-router-load-balancing-type quantile_balancing needs --moe-router-topk below "
            "--num-experts, and no groups");
    const auto not_negative = [&](double value, const char* flag) {
      require(value >= 0, fmt::format("{} {} must be at least 0", flag, value));
    };
    for (const double one : coefficients) not_negative(one, "--moe-aux-loss-coeff");
    not_negative(c_.moe_z_loss_coeff, "--moe-z-loss-coeff");
    not_negative(c_.moe_router_bias_update_rate, "--moe-router-bias-update-rate");
    not_negative(c_.moe_router_topk_scaling_factor, "--moe-router-topk-scaling-factor");
    const double ema = c_.moe_router_quantile_balancing_ema;
    require(ema >= 0 && ema <= 1,
            fmt::format("--moe-router-quantile-balancing-ema {} must be in [0, 1]", ema));
    const double jitter = c_.moe_input_jitter_eps;
    require(jitter >= 0 && jitter < 1,
            fmt::format("--moe-input-jitter-eps {} must be in [0, 1)", jitter));
  }

  void capacity() {
    require(c_.moe_expert_capacity_factor != 0,
            "--moe-expert-capacity-factor 0 must be greater than 0");
    require(c_.moe_expert_capacity_factor < 0 || !balances_by("sinkhorn"),
            "--moe-expert-capacity-factor and --moe-router-load-balancing-type sinkhorn exclude "
            "each other; keep one");
  }

  const TransformerConfig& c_;
  std::vector<std::string> found_;
};

}  // namespace

void resolve_experts(TransformerConfig& config) {
  if (!config.has_experts()) return;
  if (config.moe_ffn_hidden_size == 0) config.moe_ffn_hidden_size = config.ffn_hidden_size;
  std::vector<int>& freq = config.moe_layer_freq;
  if (freq.size() == 1 && (freq[0] > 1 || (freq[0] == 1 && config.num_layers > 1))) {
    const int every = freq[0];
    freq.assign(static_cast<size_t>(config.num_layers), 0);
    for (size_t layer = 0; layer < freq.size(); layer += static_cast<size_t>(every))
      freq[layer] = 1;
  }
  // A list of another length stays: it is a problem.
  if (std::ssize(freq) == config.num_layers &&
      std::ranges::all_of(freq, [](int one) { return one == 1; })) {
    freq.clear();
  }
  // One coefficient is that of all types.
  std::vector<double>& coefficients = config.moe_aux_loss_coeff;
  if (coefficients.size() == 1) {
    coefficients.assign(config.moe_router_load_balancing_type.size(), coefficients[0]);
  }
}

std::vector<std::string> expert_problems(const TransformerConfig& config) {
  return ExpertProblems(config).found();
}

std::vector<std::string> expert_layout_problems(const ExpertConfig& config,
                                                const ParallelConfig& parallel) {
  const int64_t ep = parallel.expert_model_parallel_size;
  const int64_t etp = expert_tensor_size(parallel);
  std::vector<std::string> found;
  if (!config.has_experts()) {
    if (ep != 1 || parallel.expert_tensor_parallel_size != 0) {
      found.emplace_back(
          "--expert-model-parallel-size and --expert-tensor-parallel-size need --num-experts; "
          "remove them");
    }
    return found;
  }
  if (ep >= 1 && config.num_experts % ep != 0) {
    found.push_back(
        fmt::format("--num-experts {} must be a multiple of --expert-model-parallel-size {}",
                    config.num_experts, ep));
  }
  if (etp >= 1 && config.moe_ffn_hidden_size % etp != 0) {
    found.push_back(
        fmt::format("--moe-ffn-hidden-size {} must be a multiple of "
                    "--expert-tensor-parallel-size {}",
                    config.moe_ffn_hidden_size, etp));
  }
  return found;
}

}  // namespace megatron

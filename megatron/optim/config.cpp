#include "megatron/optim/config.h"

#include <utility>

#include <fmt/format.h>

namespace megatron {
namespace {

// The types of --use-precision-aware-optimizer that are not available.
std::vector<std::string> problems_of_types(const OptimizerConfig& c) {
  std::vector<std::string> found;
  const std::pair<const char*, DType> types[] = {{"--main-grads-dtype", c.main_grads_dtype},
                                                 {"--main-params-dtype", c.main_params_dtype},
                                                 {"--exp-avg-dtype", c.exp_avg_dtype},
                                                 {"--exp-avg-sq-dtype", c.exp_avg_sq_dtype}};
  for (const auto& [flag, dtype] : types) {
    if (dtype == DType::kFloat32) continue;
    if (!c.use_precision_aware_optimizer) {
      found.push_back(
          fmt::format("{} needs --use-precision-aware-optimizer; add it or remove {}", flag, flag));
    }
  }
  if (c.main_params_dtype == DType::kFloat16) {
    found.emplace_back(
        "--main-params-dtype fp16 is not available; use fp32, which takes 2 bytes a parameter with "
        "--bf16, too, or bf16, which takes none");
  }
  if (c.main_params_dtype == DType::kBFloat16) {
    if (!c.bf16) found.emplace_back("--main-params-dtype bf16 needs --bf16; add it or use fp32");
    if (c.optimizer == OptimizerKind::kMuon) {
      found.emplace_back(
          "--main-params-dtype bf16 is not available with --optimizer muon; use fp32");
    }
  }
  for (const auto& [flag, dtype] : {types[2], types[3]}) {
    if (dtype == DType::kFloat16 && c.clip_grad == 0.0) {
      found.push_back(fmt::format(
          "{} fp16 needs a --clip-grad above 0, which bounds moments; set it or use bf16", flag));
    }
  }
  if (c.main_grads_dtype != DType::kFloat32 && !c.bf16) {
    found.emplace_back("--main-grads-dtype bf16 needs --bf16; add it or use fp32");
  }
  return found;
}

}  // namespace

bool keeps_remainders(const OptimizerConfig& config, DType params_dtype) {
  return params_dtype == DType::kBFloat16 && config.main_params_dtype == DType::kFloat32 &&
         !config.optimizer_cpu_offload;
}

DType main_dtype(const OptimizerConfig& config, DType params_dtype) {
  const bool is_narrow =
      params_dtype == DType::kBFloat16 && config.main_params_dtype == DType::kBFloat16;
  return is_narrow ? DType::kBFloat16 : DType::kFloat32;
}

OptimizerConfig resolved(OptimizerConfig config) {
  if (config.fp16) config.params_dtype = DType::kFloat16;
  if (config.bf16) config.params_dtype = DType::kBFloat16;
  if (config.weight_decay_incr_style == WeightDecayIncrStyle::kConstant) {
    if (!config.start_weight_decay) config.start_weight_decay = config.weight_decay;
    if (!config.end_weight_decay) config.end_weight_decay = config.weight_decay;
  }
  return config;
}

std::vector<std::string> problems(const OptimizerConfig& c) {
  std::vector<std::string> found;
  const auto require = [&](bool holds, std::string problem) {
    if (!holds) found.push_back(std::move(problem));
  };
  require(!(c.fp16 && c.bf16), "--fp16 and --bf16 exclude each other; remove one of them");
  for (std::string& problem : problems_of_types(c)) found.push_back(std::move(problem));
  require(c.adam_beta1 >= 0.0 && c.adam_beta1 < 1.0,
          fmt::format("--adam-beta1 {} must be in [0, 1)", c.adam_beta1));
  require(c.adam_beta2 >= 0.0 && c.adam_beta2 < 1.0,
          fmt::format("--adam-beta2 {} must be in [0, 1)", c.adam_beta2));
  require(c.adam_eps > 0.0, fmt::format("--adam-eps {} must be greater than 0", c.adam_eps));
  require(c.sgd_momentum >= 0.0 && c.sgd_momentum < 1.0,
          fmt::format("--sgd-momentum {} must be in [0, 1)", c.sgd_momentum));
  for (const auto& [flag, beta] :
       {std::pair("--lion-beta1", c.lion_beta1), std::pair("--lion-beta2", c.lion_beta2)}) {
    require(beta >= 0.0 && beta < 1.0, fmt::format("{} {} must be in [0, 1)", flag, beta));
  }
  require(c.optimizer != OptimizerKind::kLion || c.exp_avg_dtype != DType::kFloat8E4M3,
          "--exp-avg-dtype fp8 is not available with --optimizer lion; use bf16");
  require(c.muon_momentum >= 0.0 && c.muon_momentum < 1.0,
          fmt::format("--muon-momentum {} must be in [0, 1)", c.muon_momentum));
  require(c.muon_num_ns_steps >= 1,
          fmt::format("--muon-num-ns-steps {} must be at least 1", c.muon_num_ns_steps));
  require(c.muon_extra_scale_factor > 0.0,
          fmt::format("--muon-extra-scale-factor {} must be greater than 0",
                      c.muon_extra_scale_factor));
  require(c.optimizer != OptimizerKind::kMuon || !c.optimizer_cpu_offload,
          "--optimizer muon and --optimizer-cpu-offload exclude each other; keep one");
  require(c.clip_grad >= 0.0,
          fmt::format("--clip-grad {} must be at least 0; 0 switches clipping off", c.clip_grad));

  require(c.min_lr >= 0.0, fmt::format("--min-lr {} must be at least 0", c.min_lr));
  require(c.lr >= 0.0, fmt::format("--lr {} must be at least 0", c.lr));
  require(c.lr < 0.0 || c.min_lr <= c.lr,
          fmt::format("--min-lr {} must not exceed --lr {}; lower it", c.min_lr, c.lr));
  require(c.lr < 0.0 || c.lr_warmup_init <= c.lr,
          fmt::format("--lr-warmup-init {} must not exceed --lr {}", c.lr_warmup_init, c.lr));
  require(!c.decoupled_lr || c.decoupled_min_lr.value_or(c.min_lr) <= *c.decoupled_lr,
          fmt::format("--decoupled-lr {} must be at least its floor {}; give --decoupled-min-lr",
                      c.decoupled_lr.value_or(0.0), c.decoupled_min_lr.value_or(c.min_lr)));
  if (c.lr_warmup_fraction) {
    require(*c.lr_warmup_fraction >= 0.0 && *c.lr_warmup_fraction <= 1.0,
            fmt::format("--lr-warmup-fraction {} must be in [0, 1]", *c.lr_warmup_fraction));
  }
  require(c.lr_decay_iters >= 0 && c.lr_decay_samples >= 0,
          "--lr-decay-iters and --lr-decay-samples must be greater than 0");
  require(c.lr_warmup_iters >= 0 && c.lr_warmup_samples >= 0,
          "--lr-warmup-iters and --lr-warmup-samples must be at least 0");
  require(!(c.override_opt_param_scheduler && c.use_checkpoint_opt_param_scheduler),
          "--override-opt_param-scheduler and --use-checkpoint-opt_param-scheduler exclude each "
          "other; keep the one whose values shall apply");

  if (c.weight_decay_incr_style != WeightDecayIncrStyle::kConstant) {
    require(c.start_weight_decay && c.end_weight_decay,
            "--weight-decay-incr-style linear and cosine need --start-weight-decay and "
            "--end-weight-decay; add both");
  } else {
    require(c.start_weight_decay == c.weight_decay && c.end_weight_decay == c.weight_decay,
            "--start-weight-decay and --end-weight-decay need --weight-decay-incr-style linear or "
            "cosine; add it or remove them");
  }
  if (c.start_weight_decay && c.end_weight_decay &&
      (c.weight_decay_incr_style != WeightDecayIncrStyle::kConstant ||
       c.start_weight_decay == c.end_weight_decay)) {
    require(*c.start_weight_decay >= 0.0,
            fmt::format("weight decay {} must be at least 0", *c.start_weight_decay));
    require(*c.end_weight_decay >= *c.start_weight_decay,
            fmt::format("--end-weight-decay {} must be at least --start-weight-decay {}",
                        *c.end_weight_decay, *c.start_weight_decay));
  }

  require(c.loss_scale >= 0.0,
          fmt::format("--loss-scale {} must be greater than 0; leave it out for a dynamic scale",
                      c.loss_scale));
  require(c.min_loss_scale > 0.0,
          fmt::format("--min-loss-scale {} must be greater than 0", c.min_loss_scale));
  require(c.initial_loss_scale >= c.min_loss_scale,
          fmt::format("--initial-loss-scale {} must be at least --min-loss-scale {}",
                      c.initial_loss_scale, c.min_loss_scale));
  require(c.loss_scale_window > 0,
          fmt::format("--loss-scale-window {} must be greater than 0", c.loss_scale_window));
  require(c.hysteresis > 0, fmt::format("--hysteresis {} must be greater than 0", c.hysteresis));
  return found;
}

}  // namespace megatron

#include <cmath>

#include "megatron/optim/update_rule.h"

namespace megatron {
namespace {

class AdamRule final : public UpdateRule {
 public:
  explicit AdamRule(const OptimizerConfig& config) : config_(config) {}

  std::vector<StateSpec> state() const override {
    return {{.name = "exp_avg", .dtype = config_.exp_avg_dtype},
            {.name = "exp_avg_sq", .dtype = config_.exp_avg_sq_dtype, .is_root = true}};
  }

  void update(const RuleInput& in, Stream stream) const override {
    const auto numbers = numbers_of<kernels::AdamNumbers>(
        in.groups, [&](const ParameterGroup& group) { return numbers_for(group, in.rates); });
    kernels::adam(in.model, in.main, in.state[0].moment(), in.state[1].moment(), in.grad, in.ranges,
                  numbers, in.decision, stream);
  }

 private:
  kernels::AdamNumbers numbers_for(const ParameterGroup& group, const UpdateRates& rates) const {
    const auto step = static_cast<double>(group.step + 1);
    return {.lr = group.learning_rate(rates),
            .beta1 = config_.adam_beta1,
            .beta2 = config_.adam_beta2,
            .eps = config_.adam_eps,
            .weight_decay = group.weight_decay(rates),
            .bias_correction1 = 1.0 - std::pow(config_.adam_beta1, step),
            .bias_correction2 = 1.0 - std::pow(config_.adam_beta2, step),
            .fp16_scale = fp16_scale(config_),
            .rounding_seed = static_cast<uint32_t>(group.step + 1) * 0x9e3779b9u};
  }

  const OptimizerConfig config_;
};

}  // namespace

std::unique_ptr<UpdateRule> make_adam_rule(const OptimizerConfig& config) {
  return std::make_unique<AdamRule>(config);
}

}  // namespace megatron
